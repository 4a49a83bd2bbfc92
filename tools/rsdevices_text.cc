// The survey as text.
#include <algorithm>
#include <cstring>
#include <string_view>

#include "tools/rsdevices_survey.h"

namespace ringsock::tools {

namespace {

constexpr std::size_t kColumns = 100;
constexpr std::size_t kIndent = 2;

/// A device with its findings, as a section shows it.
struct Entry {
  std::string name;
  std::string description;
  const Findings* findings;
};
using Entries = std::vector<Entry>;

/// Appends `text` in lines that begin at column `margin`; the first one is begun already.
void append_wrapped(std::string& out, std::string_view text, std::size_t margin) {
  std::size_t column = margin;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    if (column > margin && column + 1 + word.size() > kColumns) {
      out += '\n' + std::string(margin, ' ');
      column = margin;
    } else if (column > margin) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
  }
  out += '\n';
}

void append_findings(std::string& out, const Findings& findings, std::size_t margin) {
  for (const Finding& finding : findings) {
    out += std::string(margin, ' ');
    append_wrapped(out, finding.says, margin);
    if (finding.remedy.empty()) continue;
    out += std::string(margin, ' ') + "> ";
    append_wrapped(out, finding.remedy, margin + 2);
  }
}

std::string section(const char* title, const Entries& entries, std::size_t name_width) {
  if (entries.empty()) return "";
  std::string out = title + std::string("\n");
  const std::size_t margin = kIndent + name_width + 2;
  for (const Entry& entry : entries) {
    out += std::string(kIndent, ' ') + entry.name + std::string(name_width + 2 - entry.name.size(), ' ');
    append_wrapped(out, entry.description, margin);
    if (entry.findings != nullptr) append_findings(out, *entry.findings, margin);
  }
  return out;
}

std::string describe(const PortReport& port) {
  std::string out = ", port " + std::to_string(port.number) + " " + port.state;
  const char* separator = ": ";
  for (const HostAddress& address : port.addresses) {
    out += separator + address.address;
    // Link-local addresses need their interface.
    if (address.address.starts_with("fe80:")) out += "%" + address.interface;
    separator = ", ";
  }
  return out;
}

std::string describe(const DeviceReport& device) {
  if (device.kind == Kind::soft) return device.type + ", between processes of this host";
  std::string out = device.type;
  for (const PortReport& port : device.ports) out += describe(port);
  if (device.carries_packets) out += "; libvma's packets, too";
  return out;
}

}  // namespace

std::string survey_text(const Survey& survey) {
  constexpr const char* kAllRdma = "rdma";
  Entries usable;
  Entries unusable;
  Entries costs;
  std::size_t width = std::strlen(kAllRdma);
  if (!survey.rdma_obstacles.empty()) unusable.push_back({kAllRdma, "all real devices", &survey.rdma_obstacles});
  if (!survey.rdma_costs.empty() && survey.rdma_obstacles.empty()) {
    costs.push_back({kAllRdma, "all real devices", &survey.rdma_costs});
  }
  for (const DeviceReport& device : survey.devices) {
    width = std::max(width, device.name.size());
    if (survey.is_usable(device)) {
      usable.push_back({device.name, describe(device), nullptr});
      if (!device.costs.empty()) costs.push_back({device.name, device.type, &device.costs});
    } else {
      unusable.push_back({device.name, describe(device), &device.obstacles});
    }
  }
  std::string out = section("usable", usable, width);
  if (usable.empty()) out += "usable\n  nothing\n";
  return out + section("not usable", unusable, width) + section("could be better", costs, width);
}

}  // namespace ringsock::tools
