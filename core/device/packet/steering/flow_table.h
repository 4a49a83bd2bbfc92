// The rules of one process on one interface, in the maps of the BPF programs.
#pragma once

#include <infiniband/verbs.h>

#include <mutex>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/device/packet/steering/flow_key.h"
#include "core/device/packet/steering/frames_under_way.h"

namespace ringsock::soft {

/// A rule of ibv_create_flow(3), in the form of a map's key.
struct FlowMatch {
  flow_key key{};         ///< `ring` is not set
  bool is_group = false;  ///< multicast or broadcast: several rings may have it
};

/// Reads the attributes and the specifications behind them. Errors: EINVAL invalid (sizes, order, duplicates,
/// contradictions), EOPNOTSUPP the rule is not supported.
Result<FlowMatch> parse_flow(const ibv_flow_attr& attr);

/// Threads: any.
class FlowTable {
 public:
  FlowTable(UniqueFd flows, UniqueFd hints, UniqueFd taken)
      : flows_(std::move(flows)), hints_(std::move(hints)), under_way_(std::move(taken)) {}

  /// Takes effect at once. Errors: EEXIST, ENOSPC (16,384 rules), ENOMEM.
  Status add(const FlowMatch& match, unsigned ring);
  /// Frames that the rule has brought are in the ring when this returns, and no more frames come by it. Frames of
  /// AF_XDP may come until the driver's turn ends.
  void remove(const FlowMatch& match, unsigned ring);

  [[nodiscard]] int flows_fd() const { return flows_.get(); }
  [[nodiscard]] int hints_fd() const { return hints_.get(); }
  [[nodiscard]] int taken_fd() const { return under_way_.fd(); }
  /// Called in a forked child: closes its copies of the maps. Takes no lock, because the thread that held it may not
  /// exist there.
  void forget();

 private:
  void count_exact(const flow_key& key, int change);

  std::mutex lock_;
  UniqueFd flows_;
  UniqueFd hints_;
  FramesUnderWay under_way_;
  flow_hints hint_{};
};

}  // namespace ringsock::soft
