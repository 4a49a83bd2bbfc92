// Finds the path of datagrams on an InfiniBand link: RDMA CM resolves the address and the route.
#pragma once

#include <infiniband/sa.h>
#include <sys/types.h>

#include <memory>

#include "core/device/rdma/calls.h"
#include "core/device/rdma/event_channel.h"
#include "core/verbs/ud_extensions.h"

namespace ringsock::rdma {

/// One search. Threads: one.
class CmPathSearch final : public verbs::UdPathSearch {
 public:
  /// The searches that share a token go on at a time, at most kMost: each has a descriptor.
  static constexpr long kMost = 16;
  using Token = std::shared_ptr<const char>;

  /// Starts a search. Errors: EAGAIN there are kMost; those of rdma_create_id(3) and rdma_resolve_addr(3).
  static Result<std::unique_ptr<CmPathSearch>> start(const Calls& calls, Token token, const SocketAddress& local,
                                                     const SocketAddress& destination);
  ~CmPathSearch() override;

  /// Goes on as far as it can without waiting. Errors: EAGAIN the search goes on; EHOSTUNREACH, ETIMEDOUT it has
  /// failed, for good.
  Result<ibv_ah_attr> look();

 private:
  CmPathSearch(const Calls& calls, Token token, EventChannel channel);
  Status take_event();

  const Calls& calls_;
  const Token token_;
  EventChannel channel_;
  rdma_cm_id* id_ = nullptr;
  const pid_t owner_;
  bool is_resolved_ = false;
  int failure_ = 0;
};

/// Returns the attributes of an address handle for a path record. As in rdma-core, the path has a GRH when its hop
/// limit is above 1, and the GID is found by its value.
ibv_ah_attr infiniband_path(const Calls& calls, ibv_context& context, std::uint8_t port, const ibv_sa_path_rec& record);

}  // namespace ringsock::rdma
