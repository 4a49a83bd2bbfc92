// Real devices: those of the kernel (sysfs), those that may be opened, and the results of libibverbs and RDMA CM.
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "tools/rsdevices_survey.h"
#include "tools/text.h"

namespace ringsock::tools {

namespace {

const std::string kDevices = "/sys/class/infiniband";
const std::string kVerbsFiles = "/sys/class/infiniband_verbs";
const std::string kFiles = "/dev/infiniband";
const std::string kCmFile = kFiles + "/rdma_cm";

std::string quoted(const std::string& word) { return "\"" + word + "\""; }

/// Returns the text behind the number in "4: ACTIVE" of sysfs.
std::string word_of(const std::optional<std::string>& line) {
  if (!line) return "";
  const auto blank = line->find(": ");
  return blank == std::string::npos ? *line : line->substr(blank + 2);
}

std::string lower(std::string word) {
  std::ranges::transform(word, word.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return word;
}

// -- what concerns all of them

Finding not_loaded(const System& system) {
  if (system.list("/sys/class").empty())
    return {"no-sysfs", "/sys is not mounted: devices cannot be found", "mount -t sysfs sysfs /sys"};
  return {
      "no-rdma-support", "the running kernel has no RDMA driver loaded (there is no " + kDevices + ")",
      "If the machine has an RDMA card, load its driver (mlx5_ib, irdma, bnxt_re ...; the package rdma-core does it at "
      "boot). Any network card can have Soft-RoCE: modprobe rdma_rxe && rdma link add rxe0 type rxe netdev "
      "INTERFACE"};
}

Finding no_device() {
  return {"no-rdma-device", "the kernel knows no RDMA device (" + kDevices + " is empty)",
          "Look whether the card's RDMA driver is loaded (lsmod, dmesg), and whether the device is in another network "
          "namespace (rdma system; rdma dev set DEVICE netns NAME). Any network card can have Soft-RoCE: modprobe "
          "rdma_rxe && rdma link add rxe0 type rxe netdev INTERFACE"};
}

/// Returns why this process cannot use a device file, or nothing.
std::optional<Finding> file_obstacle(const System& system, const std::string& path, const std::string& module) {
  switch (const int error = system.access_error(path)) {
    case 0: return std::nullopt;
    case ENOENT:
      return Finding{"no-device-file", path + " is missing",
                     "modprobe " + module + "; in a container, pass the file in (docker run --device=" + path + ")"};
    case EACCES:
    case EPERM:
      return Finding{"no-permission", "the user " + quoted(system.user()) + " may not read and write " + path,
                     "Give the permission by a udev rule (MODE=\"0666\", or a group that the user is in), or at once: "
                     "chmod 666 " +
                         path + "; to a container: docker run --device=" + path};
    default: return Finding{"bad-device-file", path + ": " + std::strerror(error), ""};
  }
}

/// Returns whether the limit of locked memory does not apply to this process: it has CAP_IPC_LOCK in the initial user
/// namespace.
bool may_lock_memory(const System& system) {
  constexpr std::uint64_t kIpcLock = std::uint64_t{1} << 14;
  constexpr std::string_view kName = "CapEff:\t";
  const std::string status = system.read("/proc/self/status").value_or("");
  const auto at = status.find(kName);
  if (at == std::string::npos) return false;
  std::uint64_t capabilities = 0;
  const char* const digits = status.data() + at + kName.size();
  std::from_chars(digits, status.data() + status.size(), capabilities, 16);
  const std::string everybody = system.read("/proc/self/uid_map").value_or("");
  return (capabilities & kIpcLock) != 0 && everybody.find("4294967295") != std::string::npos;
}

std::uint64_t connection_bytes(const Settings& settings) {
  return std::uint64_t{settings.config.mem_default} + settings.config.wmem_default;
}

/// Returns whether there is enough for a connection.
bool judge_locked_memory(const System& system, const Settings& settings, Survey& out) {
  const auto limit = system.limit(Limit::locked_memory);
  if (!limit || may_lock_memory(system)) return true;
  const std::string remedy =
      "For a shell: ulimit -l unlimited. For good: a line \"* - memlock unlimited\" in "
      "/etc/security/limits.d/rdma.conf, "
      "and LimitMEMLOCK=infinity in the units of services";
  const std::string is = "the limit of locked memory (ulimit -l) is " + std::to_string(*limit / 1024) + " KiB";
  const std::uint64_t connections = *limit / connection_bytes(settings);
  if (connections == 0) {
    out.rdma_obstacles.push_back(
        {"memlock-too-small",
         is + ", a connection registers " + std::to_string(connection_bytes(settings) / 1024) + " KiB",
         remedy + "; or smaller mem_default and wmem_default (rsocket.conf(5))"});
  } else {
    out.rdma_costs.push_back({"memlock-limited",
                              is + ": a process has room for about " + std::to_string(connections) +
                                  (connections == 1 ? " connection" : " connections") + " on real devices",
                              remedy});
  }
  return connections != 0;
}

// -- one device

struct Question {
  const System& system;
  const Settings& settings;
  const std::vector<VerbsDevice>& verbs;
  const std::vector<HostAddress>& addresses;
  bool cm_is_there;
  bool memory_suffices;  ///< a registration does not fail because of the limit
};

/// Returns for example "uverbs0", empty for none.
std::string verbs_file(const System& system, const std::string& device) {
  for (const std::string& entry : system.list(kVerbsFiles)) {
    if (system.read(std::string(kVerbsFiles).append("/").append(entry).append("/ibdev")) == device) return entry;
  }
  return "";
}

std::string driver_of(const System& system, const std::string& device) {
  const std::string path = kDevices + "/" + device;
  std::string driver = system.link_name(path + "/device/driver");
  // Software devices have none; their description is used instead.
  return driver.empty() ? system.read(path + "/node_desc").value_or("") : driver;
}

PortReport port_report(const Question& question, const std::string& device, const std::string& number) {
  const std::string path = kDevices + "/" + device + "/ports/" + number;
  const auto read = [&](const char* name) { return question.system.read(path + "/" + name); };
  PortReport out;
  out.number = static_cast<unsigned>(parse_number(number, 1, 255).value_or(0));
  out.state = lower(word_of(read("state")));
  out.physical = word_of(read("phys_state"));
  out.link_layer = read("link_layer").value_or("");
  out.rate = read("rate").value_or("");
  out.network = read("gid_attrs/ndevs/0").value_or("");
  for (const HostAddress& address : question.addresses) {
    if (address.device == device && address.port == out.number) out.addresses.push_back(address);
  }
  if (out.network.empty() && !out.addresses.empty()) out.network = out.addresses.front().interface;
  return out;
}

std::string type_of(const System& system, const DeviceReport& device) {
  // "4: RNIC": a card for iWARP.
  if (word_of(system.read(kDevices + "/" + device.name + "/node_type")) == "RNIC") return "iWARP";
  const bool ethernet =
      std::ranges::any_of(device.ports, [](const auto& port) { return port.link_layer == "Ethernet"; });
  return ethernet ? "RoCE" : "InfiniBand";
}

Finding no_provider(const DeviceReport& device) {
  return {"no-provider",
          "libibverbs has no provider library for it" +
              (device.driver.empty() ? "" : " (the kernel's driver: " + device.driver + ")"),
          "Install the package ibverbs-providers (or libibverbs-providers), of the same release as libibverbs; each "
          "provider needs its line in /etc/libibverbs.d"};
}

Finding cannot_open(int error) {
  const bool group_limit = error == EAGAIN || error == ENOSPC;
  return {"cannot-open", std::string("it cannot be opened: ") + std::strerror(error),
          group_limit ? "Look at the limits of the control group (rdma.max)" : "Look what the kernel says (dmesg)"};
}

Finding cannot_register(int error, const Settings& settings) {
  return {"cannot-register",
          std::to_string(connection_bytes(settings) / 1024) +
              " KiB of memory cannot be registered with it: " + std::strerror(error),
          error == ENOMEM ? "Raise the limit of locked memory (ulimit -l), or that of the control group (memory.max)"
                          : "Look at the limits of the control group (rdma.max), and what the kernel says (dmesg)"};
}

/// Returns the first obstacle on the way from the kernel to the connection manager.
std::optional<Finding> access_obstacle(const Question& question, const DeviceReport& device) {
  const std::string file = verbs_file(question.system, device.name);
  if (file.empty())
    return Finding{"no-verbs", "programs have no way to it: the kernel's module ib_uverbs is not loaded",
                   "modprobe ib_uverbs"};
  if (auto obstacle = file_obstacle(question.system, kFiles + "/" + file, "ib_uverbs")) return obstacle;
  const auto verbs =
      std::ranges::find_if(question.verbs, [&](const auto& candidate) { return candidate.name == device.name; });
  if (verbs == question.verbs.end()) return no_provider(device);
  if (verbs->transport == Transport::other)
    return Finding{"no-connections",
                   "it has no connections of the kind that librdmacm makes (its transport is neither "
                   "InfiniBand, RoCE nor iWARP)",
                   ""};
  if (verbs->open_error != 0) return cannot_open(verbs->open_error);
  if (verbs->register_error != 0 && question.memory_suffices)
    return cannot_register(verbs->register_error, question.settings);
  return std::nullopt;
}

Finding port_down(const PortReport& port) {
  const std::string says = "port " + std::to_string(port.number) + " is not active: " + port.state +
                           (port.physical.empty() ? "" : ", physical state " + port.physical);
  if (port.link_layer == "InfiniBand" && port.physical == "LinkUp")
    return {"port-not-active", says, "It waits for a subnet manager: run opensm on one host of the fabric"};
  return {"port-not-active", says,
          port.network.empty() ? "Connect its cable, and set its network interface up"
                               : "Connect its cable, and: ip link set " + port.network + " up"};
}

Finding no_address(const DeviceReport& device) {
  const auto& network = device.ports.front().network;
  const std::string says = "no IP address of this host is on it, and connections are made by address";
  if (device.type == "InfiniBand")
    return {"no-address", says, "modprobe ib_ipoib, and give the interface of the port an address"};
  return {"no-address", says, "ip addr add ADDRESS/BITS dev " + (network.empty() ? "INTERFACE" : network)};
}

void judge_ports(const Question& question, DeviceReport& device) {
  const auto is_down = [](const PortReport& port) { return port.state != "active"; };
  if (std::ranges::all_of(device.ports, is_down)) {
    for (const PortReport& port : device.ports) device.obstacles.push_back(port_down(port));
    if (device.ports.empty()) device.obstacles.push_back({"no-port", "it has no port", ""});
    return;
  }
  const bool reachable = std::ranges::any_of(device.ports, [](const auto& port) { return !port.addresses.empty(); });
  // Without a connection manager the addresses of a device are unknown.
  if (!reachable && question.cm_is_there && device.obstacles.empty()) device.obstacles.push_back(no_address(device));
}

DeviceReport device_report(const Question& question, const std::string& name) {
  DeviceReport out;
  out.name = name;
  out.driver = driver_of(question.system, name);
  for (const std::string& port :
       question.system.list(std::string(kDevices).append("/").append(name).append("/ports"))) {
    out.ports.push_back(port_report(question, name, port));
  }
  out.type = type_of(question.system, out);
  const auto verbs =
      std::ranges::find_if(question.verbs, [&](const auto& candidate) { return candidate.name == name; });
  out.carries_packets = verbs != question.verbs.end() && verbs->carries_packets;
  if (auto obstacle = access_obstacle(question, out)) out.obstacles.push_back(*std::move(obstacle));
  judge_ports(question, out);
  return out;
}

}  // namespace

void survey_rdma(const System& system, const Settings& settings, Survey& out) {
  using enum config::DeviceChoice;
  const auto choice = settings.config.device;
  if (choice == soft || choice == none) {
    out.rdma_obstacles.push_back(
        {"switched-off", settings.device_source + " is " + quoted(to_string(choice)) + ": real devices are not used",
         "Set it to auto or rdma"});
  }
  // An entry without ports is no device but a file, such as the bonding driver's in its class.
  auto names = system.list(kDevices);
  std::erase_if(names, [&](const auto& name) { return !system.read(kDevices + "/" + name + "/node_type"); });
  if (names.empty()) {
    const auto classes = system.list("/sys/class");
    const bool loaded = std::ranges::find(classes, "infiniband") != classes.end();
    out.rdma_obstacles.push_back(loaded ? no_device() : not_loaded(system));
    return;
  }
  const auto cm_obstacle = file_obstacle(system, kCmFile, "rdma_ucm");
  if (cm_obstacle) out.rdma_obstacles.push_back(*cm_obstacle);
  const bool memory_suffices = judge_locked_memory(system, settings, out);
  const auto verbs = system.verbs_devices(connection_bytes(settings));
  const auto addresses = system.addresses(!cm_obstacle);
  const Question question{system, settings, verbs, addresses, !cm_obstacle, memory_suffices};
  for (const std::string& name : names) out.devices.push_back(device_report(question, name));
}

}  // namespace ringsock::tools
