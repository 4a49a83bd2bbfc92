#include "core/device/rdma/rdma_devices.h"

#include <cerrno>
#include <cstring>

#include "core/base/log.h"
#include "core/device/rdma/event_channel.h"

namespace ringsock::rdma {

namespace {

constexpr const char* kCmDevice = "/dev/infiniband/rdma_cm";
constexpr Nanos kLookInterval = std::chrono::seconds(1);
constexpr std::size_t kMaxRemembered = 1024;

/// The device list of libibverbs. Its devices are valid only as long as the list.
class DeviceList {
 public:
  explicit DeviceList(const Calls& calls) : calls_(calls), list_(calls.get_device_list(&count_)) {}
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;
  ~DeviceList() {
    if (list_ != nullptr) calls_.free_device_list(list_);
  }
  [[nodiscard]] std::span<ibv_device* const> devices() const {
    return {list_, list_ != nullptr && count_ > 0 ? static_cast<std::size_t>(count_) : 0};
  }

 private:
  const Calls& calls_;
  int count_ = 0;
  ibv_device** list_;
};

}  // namespace

bool RdmaDevices::present() {
  const std::lock_guard guard(lock_);
  const Nanos now = monotonic_now();
  if (look_again_ != Nanos::zero() && now < look_again_) return present_;
  present_ = look_for_devices();
  look_again_ = now + kLookInterval;
  return present_;
}

bool RdmaDevices::look_for_devices() {
  if (!may_open(kCmDevice, "RDMA devices are")) return false;
  if (const std::string missing = calls_.load_error(); !missing.empty()) {
    explain("libraries", ELIBACC, "RDMA devices are not used: " + missing);
    return false;
  }
  const DeviceList list(calls_);
  bool any = false;
  for (const ibv_device* device : list.devices()) {
    if (!may_use(*device)) {
      explain(device->name, EADDRINUSE,
              std::string("RDMA device ") + device->name +
                  " is not used: iWARP's ports are the kernel's TCP ports; RINGSOCK_DEVICE=rdma connects by it");
      continue;
    }
    any |= may_open(std::string("/dev/infiniband/") + device->dev_name,
                    std::string("RDMA device ") + device->name + " is");
  }
  if (list.devices().empty()) explain("no device", ENODEV, "RDMA devices are not used: there is none");
  return any;
}

/// @param without the beginning of a sentence that tells what cannot be used then
bool RdmaDevices::may_open(const std::string& path, const std::string& without) {
  const int error = calls_.open_error(path.c_str());
  if (error != 0) explain(path, error, without + " not used: cannot open " + path + ": " + std::strerror(error));
  return error == 0;
}

/// Explains each `subject` once.
void RdmaDevices::explain(const std::string& subject, int error, const std::string& text) {
  if (!told_.insert(subject).second) return;
  // Most hosts have no RDMA, which is not worth a warning.
  if (use_.required || error == EACCES || error == EPERM || error == ELIBACC) {
    log_warn("%s; see rsdevices(1)", text.c_str());
  } else {
    log_info("%s", text.c_str());
  }
}

bool RdmaDevices::owns(const SocketAddress& address) {
  SocketAddress host = address;
  host.set_port(0);
  const std::string key(reinterpret_cast<const char*>(host.get()), host.length());
  {
    const std::lock_guard guard(lock_);
    if (const auto known = owners_.find(key); known != owners_.end() && monotonic_now() < known->second.until) {
      return known->second.by_us;
    }
  }
  const bool by_us = ask_who_owns(host);
  const std::lock_guard guard(lock_);
  if (owners_.size() >= kMaxRemembered) owners_.clear();
  owners_.insert_or_assign(key, Owned{by_us, monotonic_now() + kLookInterval});
  return by_us;
}

/// Asks RDMA CM: binding an id to an address makes it look for the device of that address, whatever the link layer.
bool RdmaDevices::ask_who_owns(const SocketAddress& address) {
  auto channel = EventChannel::create(calls_);
  if (!channel) return false;
  rdma_cm_id* id = nullptr;
  if (calls_.create_id(channel->get(), &id, nullptr, RDMA_PS_TCP) != 0) return false;
  const bool ours = calls_.bind_addr(id, const_cast<sockaddr*>(address.get())) == 0 && id->verbs != nullptr &&
                    may_use(*id->verbs->device);
  calls_.destroy_id(id);
  return ours;
}

Result<std::shared_ptr<OpenContext>> RdmaDevices::open(ibv_device& device) {
  if (auto known = contexts_[device.name].lock(); known && known->is_usable()) return known;
  if (contexts_.size() == 1 && calls_.fork_init() != 0) {
    log_info("RDMA: ibv_fork_init: %s", std::strerror(errno));
  }
  auto opened = OpenContext::open(calls_, device, use_.watch);
  if (!opened) return opened.error();
  contexts_[device.name] = *opened;
  return opened;
}

Result<RdmaDevice*> RdmaDevices::device_of(const ibv_context& context) {
  const std::lock_guard guard(lock_);
  const char* const name = context.device->name;
  if (const auto known = devices_.find(name); known != devices_.end()) {
    if (known->second->is_usable()) return known->second.get();
    retired_.push_back(std::move(known->second));
    devices_.erase(known);
  }
  const DeviceList list(calls_);
  for (ibv_device* device : list.devices()) {
    if (std::strcmp(device->name, name) != 0) continue;
    auto opened = open(*device);
    if (!opened) return opened.error();
    // Without a counted reference to this object, which owns the device.
    auto made = RdmaDevice::create(std::shared_ptr<RdmaDevices>(std::shared_ptr<RdmaDevices>(), this), *opened);
    if (!made) return made.error();
    return devices_.emplace(name, *std::move(made)).first->second.get();
  }
  return Error{ENODEV, "rdma: the device is gone"};
}

Result<std::unique_ptr<RdmaDevice>> RdmaDevices::open_first() {
  const std::lock_guard guard(lock_);
  Error error{ENODEV, "rdma: no device"};
  const DeviceList list(calls_);
  for (ibv_device* device : list.devices()) {
    if (!may_use(*device)) continue;
    auto opened = open(*device);
    if (opened) {
      auto made = RdmaDevice::create(shared_from_this(), *opened);
      if (made) return made;
      error = made.error();
    } else {
      error = opened.error();
    }
  }
  return error;
}

Result<PacketPort> RdmaDevices::open_packet_port(unsigned ifindex) {
  const std::lock_guard guard(lock_);
  if (const std::string missing = calls_.load_error(); !missing.empty()) {
    // Most hosts have no RDMA card.
    explain("libraries", ENODEV, "RDMA devices are not used: " + missing);
    return Error{ELIBACC, "rdma: a library is missing"};
  }
  Error error{ENODEV, "rdma: no port is that interface"};
  const DeviceList list(calls_);
  for (ibv_device* device : list.devices()) {
    auto opened = open(*device);
    if (!opened) {
      error = opened.error();
      continue;
    }
    ibv_context& context = (*opened)->get();
    const auto number = packet_port_of(calls_, context, ifindex);
    if (!number) continue;
    const PacketOffloads offloads = packet_offloads_of(calls_, context);
    auto made = RdmaDevice::create(shared_from_this(), *std::move(opened));
    if (!made) return made.error();
    (*made)->use_for_packets(offloads.wallclock);
    if (Status tried = try_packets(**made); !tried) return tried.error();
    return PacketPort{*std::move(made), *number, offloads};
  }
  return error;
}

}  // namespace ringsock::rdma
