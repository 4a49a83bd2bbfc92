// The survey as JSON.
#include <nlohmann/json.hpp>

#include "tools/rsdevices_survey.h"

namespace ringsock::tools {

namespace {

using nlohmann::ordered_json;

ordered_json text_or_null(const std::string& text) { return text.empty() ? ordered_json(nullptr) : ordered_json(text); }

ordered_json findings_json(const Findings& findings) {
  ordered_json out = ordered_json::array();
  for (const Finding& finding : findings) {
    out.push_back({{"id", finding.id}, {"says", finding.says}, {"remedy", text_or_null(finding.remedy)}});
  }
  return out;
}

ordered_json port_json(const PortReport& port) {
  ordered_json out{{"port", port.number},
                   {"state", text_or_null(port.state)},
                   {"physical_state", text_or_null(port.physical)},
                   {"link_layer", text_or_null(port.link_layer)},
                   {"rate", text_or_null(port.rate)},
                   {"interface", text_or_null(port.network)},
                   {"addresses", ordered_json::array()}};
  for (const HostAddress& address : port.addresses) {
    out["addresses"].push_back({{"address", address.address}, {"interface", address.interface}});
  }
  return out;
}

ordered_json device_json(const DeviceReport& device, bool usable) {
  ordered_json out{{"name", device.name},
                   {"kind", device.kind == Kind::rdma ? "rdma" : "soft"},
                   {"usable", usable},
                   {"type", device.type},
                   {"driver", text_or_null(device.driver)},
                   {"ports", ordered_json::array()}};
  for (const PortReport& port : device.ports) out["ports"].push_back(port_json(port));
  out["packets"] = device.carries_packets;
  out["obstacles"] = findings_json(device.obstacles);
  out["costs"] = findings_json(device.costs);
  return out;
}

}  // namespace

std::string survey_json(const Survey& survey) {
  ordered_json out{{"usable", survey.is_any_usable()}, {"devices", ordered_json::array()}};
  for (const DeviceReport& device : survey.devices) {
    out["devices"].push_back(device_json(device, survey.is_usable(device)));
  }
  out["rdma"] = {{"obstacles", findings_json(survey.rdma_obstacles)}, {"costs", findings_json(survey.rdma_costs)}};
  // Names from the kernel may not be UTF-8.
  return out.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace ringsock::tools
