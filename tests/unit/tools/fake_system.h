// A host as rsdevices sees it, in a test.
#pragma once

#include <cerrno>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tools/rsdevices_survey.h"

namespace ringsock::tools {

/// One where everything is in order, at first without real devices. Tests change what they are about.
class FakeSystem final : public System {
 public:
  FakeSystem() {
    files["/sys/class/net/lo/mtu"] = "65536";
    files["/proc/sys/vm/overcommit_memory"] = "0";
    files["/proc/self/uid_map"] = "         0          0 4294967295";
    set_capabilities("0000000000000000");
  }

  /// A card with one active port and an address.
  void add_device(const std::string& name, const std::string& address, Transport transport = Transport::infiniband) {
    const std::string number = std::to_string(verbs.size());
    const std::string path = "/sys/class/infiniband/" + name;
    files[path + "/node_type"] = transport == Transport::iwarp ? "4: RNIC" : "1: CA";
    files[path + "/node_desc"] = "a card";
    links[path + "/device/driver"] = "mlx5_core";
    files[path + "/ports/1/state"] = "4: ACTIVE";
    files[path + "/ports/1/phys_state"] = "5: LinkUp";
    files[path + "/ports/1/link_layer"] = "Ethernet";
    files[path + "/ports/1/rate"] = "100 Gb/sec (4X EDR)";
    files[path + "/ports/1/gid_attrs/ndevs/0"] = "eth" + number;
    files["/sys/class/infiniband_verbs/uverbs" + number + "/ibdev"] = name;
    verbs.push_back({name, transport, 0, 0, false});
    if (!address.empty()) host_addresses.push_back({"eth" + number, address, name, 1});
  }
  void set_port(const std::string& device, const std::string& what, const std::string& value) {
    files["/sys/class/infiniband/" + device + "/ports/1/" + what] = value;
  }
  void set_capabilities(const std::string& mask) {
    files["/proc/self/status"] = "Name:\trsdevices\nCapEff:\t" + mask + "\nCapBnd:\t000001ffffffffff";
  }

  [[nodiscard]] std::optional<std::string> read(const std::string& path) const override {
    const auto file = files.find(path);
    return file == files.end() ? std::nullopt : std::optional(file->second);
  }
  [[nodiscard]] std::vector<std::string> list(const std::string& directory) const override {
    std::set<std::string> names;
    const std::string start = directory + "/";
    for (const auto& [path, text] : files) {
      if (path.starts_with(start)) names.insert(path.substr(start.size(), path.find('/', start.size()) - start.size()));
    }
    return {names.begin(), names.end()};
  }
  [[nodiscard]] std::string link_name(const std::string& path) const override {
    const auto link = links.find(path);
    return link == links.end() ? "" : link->second;
  }
  [[nodiscard]] int access_error(const std::string& path) const override {
    const auto error = access_errors.find(path);
    return error == access_errors.end() ? 0 : error->second;
  }
  [[nodiscard]] std::vector<VerbsDevice> verbs_devices(std::size_t bytes) const override {
    trial_bytes = bytes;
    return verbs;
  }
  [[nodiscard]] std::vector<HostAddress> addresses(bool ask_rdma_cm) const override {
    auto out = host_addresses;
    for (HostAddress& address : out) {
      if (!ask_rdma_cm) address.device.clear();
    }
    return out;
  }
  [[nodiscard]] int feature_error(KernelFeature feature) const override {
    const auto error = feature_errors.find(feature);
    return error == feature_errors.end() ? 0 : error->second;
  }
  [[nodiscard]] std::optional<std::uint64_t> limit(Limit which) const override {
    const auto limit = limits.find(which);
    return limit == limits.end() ? std::nullopt : std::optional(limit->second);
  }
  [[nodiscard]] std::string user() const override { return "alice"; }
  [[nodiscard]] std::string kernel_release() const override { return release; }

  std::map<std::string, std::string> files;  ///< by path; directories are what they imply
  std::map<std::string, std::string> links;
  std::map<std::string, int> access_errors;
  std::vector<VerbsDevice> verbs;
  std::vector<HostAddress> host_addresses;
  std::map<KernelFeature, int> feature_errors;
  std::map<Limit, std::uint64_t> limits;
  std::string release = "6.12.0";
  mutable std::size_t trial_bytes = 0;  ///< of the last question to libibverbs
};

inline Settings default_settings() { return {{}, "/etc/rdma/rsocket/device"}; }

inline std::vector<std::string> ids(const Findings& findings) {
  std::vector<std::string> out;
  for (const Finding& finding : findings) out.push_back(finding.id);
  return out;
}

}  // namespace ringsock::tools
