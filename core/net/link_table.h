// The links and addresses of a network namespace.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "core/net/kernel.h"

namespace ringsock::net {

/// Threads: one at a time.
class LinkTable {
 public:
  // @return whether a fact changed; the kernel repeats its messages
  bool apply(const LinkEvent& event);
  bool apply(const Inet6LinkEvent& event);
  bool apply(const AddressEvent& event);
  void clear();
  /// Grows with each event. Tables that were requested before an event and arrive after it may be older than the event.
  [[nodiscard]] std::uint64_t events() const { return events_; }

  [[nodiscard]] const Link* find(int ifindex) const;
  [[nodiscard]] const Link* find(std::string_view name) const;
  [[nodiscard]] std::vector<Link> links() const;
  [[nodiscard]] std::vector<Link> members_of(int ifindex) const;
  [[nodiscard]] std::vector<InterfaceAddress> addresses(int ifindex) const;  ///< 0: all
  [[nodiscard]] std::optional<InterfaceAddress> find_address(const IpAddress& address, int ifindex) const;

 private:
  std::map<int, Link> links_;
  std::vector<InterfaceAddress> addresses_;
  std::uint64_t events_ = 0;
};

}  // namespace ringsock::net
