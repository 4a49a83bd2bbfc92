// Describes what ringsock can use on a host, and why it cannot use the rest.
#pragma once

#include <string>
#include <vector>

#include "core/config/rsocket_config.h"
#include "tools/rsdevices_system.h"

namespace ringsock::tools {

/// One finding. Texts are for people and may change; the id is stable.
struct Finding {
  std::string id;      ///< e.g. "no-permission"
  std::string says;    ///< the fact
  std::string remedy;  ///< a remedy for an administrator; empty: none
};
using Findings = std::vector<Finding>;

struct PortReport {
  unsigned number = 0;
  std::string state;       ///< "active", "down", "init", "armed"
  std::string physical;    ///< "LinkUp", "Polling", "Disabled" ...
  std::string link_layer;  ///< "Ethernet", "InfiniBand"
  std::string rate;        ///< "100 Gb/sec (4X EDR)"
  std::string network;     ///< its network interface, e.g. "eth0"; empty: unknown
  std::vector<HostAddress> addresses;
};

enum class Kind { rdma, soft };

struct DeviceReport {
  std::string name;
  Kind kind = Kind::rdma;
  std::string type;    ///< "RoCE", "InfiniBand", "iWARP", "shared memory"
  std::string driver;  ///< the kernel's; empty: unknown
  std::vector<PortReport> ports;
  bool carries_packets =
      false;           ///< libvma can use it for this user: the interfaces of its ports have rings on the card
  Findings obstacles;  ///< why it is not used; obstacles of all devices are in Survey::rdma_obstacles
  Findings costs;      ///< limitations of speed or function
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
  std::string device_source;  ///< the source of config.device: "RINGSOCK_DEVICE", or a file
  bool rdma = true;           ///< whether the configuration permits real devices
  bool soft = true;
};

Survey survey(const System& system, const Settings& settings);

// The two parts of the survey.
void survey_rdma(const System& system, const Settings& settings, Survey& out);
DeviceReport survey_embedded(const System& system, const Settings& settings);

/// Returns the survey for people, at most 100 columns wide.
std::string survey_text(const Survey& survey);
/// Returns the survey as a JSON document, described in rsdevices(1).
std::string survey_json(const Survey& survey);

}  // namespace ringsock::tools
