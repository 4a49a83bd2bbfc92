// The Kernel interface by netlink.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "core/base/mutex.h"
#include "core/base/unique_fd.h"
#include "core/net/ipsec_watch.h"
#include "core/net/kernel.h"
#include "core/net/multipath_watch.h"
#include "core/net/netfilter_watch.h"
#include "core/net/netlink_socket.h"
#include "core/net/path_mtu_watch.h"

namespace ringsock::net {

/// Has five to seventeen descriptors: two sockets of rtnetlink (events, questions), two of XFRM, two raw ones for path
/// MTUs, one that knows the namespace's default hop limit, a timer, the epoll descriptor over them, and those of
/// NetfilterWatch and MultipathWatch.
class NetlinkKernel final : public Kernel {
 public:
  /// Opens the sockets in the network namespace `network_namespace` (networks.h), in which the calling thread must be.
  /// Errors: EXDEV it is in another one; EMFILE, ENFILE, ENOMEM.
  static Result<std::unique_ptr<Kernel>> open(std::uint64_t network_namespace);

  [[nodiscard]] int fd() const override { return sockets_.waiting.get(); }
  void wake_at(Nanos when) override;
  [[nodiscard]] Nanos now() const override { return monotonic_now(); }
  Result<std::vector<KernelEvent>> read_tables() override;
  KernelEvents read_events() override;
  Result<PathAnswer> path(const PathQuery& query) override;
  bool ports_decide(int family) override;
  Result<NeighbourFacts> neighbour(int ifindex, const IpAddress& address) override;
  Status use_neighbour(int ifindex, const IpAddress& address) override;
  [[nodiscard]] std::uint8_t default_hop_limit() const override;
  [[nodiscard]] std::optional<std::string> filter_of(int family, std::string_view device) const override {
    return netfilter_.filter_of(family, device);
  }
  void before_fork() override {
    asking_.lock();
    netfilter_.before_fork();
  }
  void after_fork() override {
    netfilter_.after_fork();
    asking_.unlock();
  }
  Status reopen() override;

 private:
  struct Sockets {
    NetlinkSocket events;
    NetlinkSocket questions;
    PathMtuWatch path_mtu;
    UniqueFd plain;    ///< a UDP socket, where path_mtu has none for IPv4
    UniqueFd timer;    ///< timerfd
    UniqueFd waiting;  ///< epoll descriptor over all the others
  };

  explicit NetlinkKernel(std::uint64_t network_namespace) : network_namespace_(network_namespace) {}
  Status open_sockets();
  Status wait_for_all();
  Status ask(nl_msg* message, const OnMessage& on_answer);
  Result<std::vector<KernelEvent>> read_table(int question_type);

  const std::uint64_t network_namespace_;
  Mutex asking_;  ///< guards sockets_.questions
  Sockets sockets_;
  IpsecWatch ipsec_;
  NetfilterWatch netfilter_;
  MultipathWatch multipath_;
};

}  // namespace ringsock::net
