// What ringsock can use on a host, and why not the rest, in words.
#pragma once

#include <string>
#include <vector>

#include "core/config/rsocket_config.h"
#include "tools/rsdevices_system.h"

namespace ringsock::tools {

/// One thing to know. Texts are for people and may change, the id stays.
struct Finding {
  std::string id;      ///< e.g. "no-permission"
  std::string says;    ///< what is the case
  std::string remedy;  ///< what an administrator can do; empty: nothing
};
using Findings = std::vector<Finding>;

struct PortReport {
  unsigned number = 0;
  std::string state;       ///< "active", "down", "init", "armed"
  std::string physical;    ///< "LinkUp", "Polling", "Disabled" ...
  std::string link_layer;  ///< "Ethernet", "InfiniBand"
  std::string rate;        ///< "100 Gb/sec (4X EDR)"
  std::string network;     ///< the interface beside it, e.g. "eth0"; empty: unknown
  std::vector<HostAddress> addresses;
};

enum class Kind { rdma, soft };

struct DeviceReport {
  std::string name;
  Kind kind = Kind::rdma;
  std::string type;    ///< "RoCE", "InfiniBand", "iWARP", "shared memory"
  std::string driver;  ///< the kernel's; empty: unknown
  std::vector<PortReport> ports;
  bool carries_packets = false;  ///< libvma's, for this user: the interfaces beside its ports have rings of their own
  Findings obstacles;            ///< why it is not used; what concerns all devices is in Survey::rdma_obstacles
  Findings costs;                ///< what is slower, or less, than it could be
};

struct Survey {
  std::vector<DeviceReport> devices;  ///< the real ones by name, then the embedded one
  Findings rdma_obstacles;            ///< why no real device is used
  Findings rdma_costs;

  [[nodiscard]] bool is_usable(const DeviceReport& device) const {
    return device.obstacles.empty() && (device.kind == Kind::soft || rdma_obstacles.empty());
  }
  [[nodiscard]] bool is_any_usable() const {
    for (const DeviceReport& device : devices) {
      if (is_usable(device)) return true;
    }
    return false;
  }
};

struct Settings {
  config::RsocketConfig config;
  std::string device_source;  ///< where config.device is from: "RINGSOCK_DEVICE", or a file
  bool rdma = true;           ///< whether real devices are asked for
  bool soft = true;
};

Survey survey(const System& system, const Settings& settings);

// Its two halves.
void survey_rdma(const System& system, const Settings& settings, Survey& out);
DeviceReport survey_embedded(const System& system, const Settings& settings);

/// For people, at most 100 columns.
std::string survey_text(const Survey& survey);
/// One JSON document; its form is in rsdevices(1).
std::string survey_json(const Survey& survey);

}  // namespace ringsock::tools
