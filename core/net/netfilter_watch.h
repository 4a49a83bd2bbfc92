// Whether netfilter may do something to packets of the network namespace: what never passes by the kernel's stack
// passes by no rule either.
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

/// A place where the kernel looks at packets that this host receives or sends.
struct PacketFilter {
  int family = 0;      ///< AF_INET, AF_INET6; AF_UNSPEC: of both
  std::string device;  ///< only of this interface, a prefix if it ends in *; empty: of all
  std::string name;    ///< for the log

  [[nodiscard]] bool concerns(int packets_family, std::string_view packets_device) const;
  bool operator==(const PacketFilter&) const = default;
};

/// Out of a message of nf_tables about a chain: where it looks at packets that this host receives or sends, if it may
/// change or drop one: it has rules, or drops what no rule accepts, or translates addresses of connections that it
/// knows. Several: one for each device.
std::vector<PacketFilter> filters_of_chain(const nlmsghdr& message);
/// Out of /proc/net/ip_tables_names: tables of the older iptables. Their rules are not looked at.
std::vector<PacketFilter> filters_of_tables(int family, std::string_view names);
/// Out of /proc/net/ip_vs: whether IPVS has services.
bool has_virtual_services(std::string_view list);

/// Threads: filter_of() any, the rest one at a time.
class NetfilterWatch {
 public:
  /// In the calling thread's network namespace. Sees none where the kernel has no netfilter; without CAP_NET_ADMIN
  /// nobody may know, and every packet may be concerned.
  void open();

  /// Readable when chains or rules have changed, or it is time to look for what nobody tells of; -1: none.
  [[nodiscard]] int fd() const { return events_.fd(); }
  [[nodiscard]] int timer_fd() const { return timer_.get(); }
  /// Takes what has changed, without waiting. @return whether filter_of() may answer otherwise now.
  bool read();
  /// What concerns packets of that family on that interface, by a name for the log.
  [[nodiscard]] std::optional<std::string> filter_of(int family, std::string_view device) const;

  // Around fork(2), of filter_of()
  void before_fork() { lock_.lock(); }
  void after_fork() { lock_.unlock(); }

 private:
  /// /proc/net/NAME of this namespace, whoever reads it.
  class ProcFile {
   public:
    explicit ProcFile(const char* path) : path_(path) {}
    /// The calling thread's namespace. There is no such file as long as a module is not loaded.
    void open();
    [[nodiscard]] bool is_open() const { return static_cast<bool>(fd_); }
    /// It is there, and not for us.
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
  std::string place_;  ///< of the namespace, as /proc/thread-self/ns/net says it
  ProcFile tables_v4_{"/proc/thread-self/net/ip_tables_names"};
  ProcFile tables_v6_{"/proc/thread-self/net/ip6_tables_names"};
  ProcFile services_{"/proc/thread-self/net/ip_vs"};

  mutable Mutex lock_;
  std::vector<PacketFilter> chains_;
  std::vector<PacketFilter> others_;  ///< of older iptables, IPVS
};

}  // namespace ringsock::net
