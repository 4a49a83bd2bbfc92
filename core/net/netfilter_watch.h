// Watches whether netfilter may act on packets of the network namespace: packets that bypass the kernel's stack bypass
// its rules.
#pragma once

#include <linux/netlink.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/net/netlink_socket.h"

namespace ringsock::net {

/// A chain or table that filters packets that this host receives or sends.
struct PacketFilter {
  int family = 0;      ///< AF_INET, AF_INET6; AF_UNSPEC: of both
  std::string device;  ///< this interface only, or those with this prefix when it ends in *; empty: all
  std::string name;    ///< for the log

  [[nodiscard]] bool concerns(int packets_family, std::string_view packets_device) const;
  bool operator==(const PacketFilter&) const = default;
};

/// Reads a message of nf_tables about a chain. Returns where the chain looks at packets that this host receives or
/// sends, one entry for each device. Returns none if the chain cannot change or drop a packet: it has no rules, does
/// not drop by policy, and translates no addresses.
std::vector<PacketFilter> filters_of_chain(const nlmsghdr& message);
/// Reads /proc/net/ip_tables_names: the tables of the older iptables. Their rules are not looked at.
std::vector<PacketFilter> filters_of_tables(int family, std::string_view names);
/// Reads /proc/net/ip_vs. Returns whether IPVS has services.
bool has_virtual_services(std::string_view list);

/// Threads: filter_of() any, the rest one at a time.
class NetfilterWatch {
 public:
  /// Starts to watch the calling thread's network namespace. Sees no filters where the kernel has no netfilter. Without
  /// CAP_NET_ADMIN the filters are unknown, and every packet counts as filtered.
  void open();

  /// Becomes readable when chains or rules have changed, and when it is time to look for changes that cause no events;
  /// -1: none.
  [[nodiscard]] int fd() const { return events_.fd(); }
  [[nodiscard]] int timer_fd() const { return timer_.get(); }
  /// Reads the changes, without waiting. @return whether answers of filter_of() may have changed
  bool read();
  /// Returns the name, for the log, of a filter for packets of that family on that interface, or nothing.
  [[nodiscard]] std::optional<std::string> filter_of(int family, std::string_view device) const;

  // Called around fork(2): they hold the lock of filter_of().
  void before_fork() { lock_.lock(); }
  void after_fork() { lock_.unlock(); }

 private:
  /// The file /proc/net/NAME of the namespace in which open() was called. Any thread may read it.
  class ProcFile {
   public:
    explicit ProcFile(const char* path) : path_(path) {}
    /// Opens the file of the calling thread's namespace. The file may be missing until a kernel module is loaded.
    void open();
    [[nodiscard]] bool is_open() const { return static_cast<bool>(fd_); }
    /// Returns whether the file exists but may not be read.
    [[nodiscard]] bool is_forbidden() const { return is_forbidden_; }
    [[nodiscard]] std::string read() const;

   private:
    const char* path_;
    UniqueFd fd_;
    bool is_forbidden_ = false;
  };
  Status open_sockets();
  std::vector<PacketFilter> ask_for_chains();
  std::vector<PacketFilter> look_for_others();
  bool take_events();

  Status has_sockets_ = ok();
  NetlinkSocket questions_;
  NetlinkSocket events_;
  UniqueFd timer_;
  std::string place_;  ///< of the namespace, as /proc/thread-self/ns/net gives it
  ProcFile tables_v4_{"/proc/thread-self/net/ip_tables_names"};
  ProcFile tables_v6_{"/proc/thread-self/net/ip6_tables_names"};
  ProcFile services_{"/proc/thread-self/net/ip_vs"};

  mutable Mutex lock_;
  std::vector<PacketFilter> chains_;
  std::vector<PacketFilter> others_;  ///< filters of older iptables, and IPVS
};

}  // namespace ringsock::net
