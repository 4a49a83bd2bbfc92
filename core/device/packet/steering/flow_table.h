// The rules of one interface and process, in the maps that the BPF programs look into.
#pragma once

#include <infiniband/verbs.h>

#include <mutex>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/device/packet/steering/flow_key.h"

namespace ringsock::soft {

/// A rule of ibv_create_flow(3), as it is looked up.
struct FlowMatch {
  flow_key key{};         ///< without ring
  bool is_group = false;  ///< multicast or broadcast: several rings may have it
};

/// Reads the attributes and the specifications behind them.
/// Errors: EINVAL nonsense (sizes, order, twice the same, contradictions), EOPNOTSUPP a rule that we do not have.
Result<FlowMatch> parse_flow(const ibv_flow_attr& attr);

/// Threads: all functions from any thread.
class FlowTable {
 public:
  FlowTable(UniqueFd flows, UniqueFd hints) : flows_(std::move(flows)), hints_(std::move(hints)) {}

  /// Takes effect at once. Errors: EEXIST, ENOSPC (16,384 rules), ENOMEM.
  Status add(const FlowMatch& match, unsigned ring);
  void remove(const FlowMatch& match, unsigned ring);

  [[nodiscard]] int flows_fd() const { return flows_.get(); }
  [[nodiscard]] int hints_fd() const { return hints_.get(); }
  /// In a forked child: closes its copies of the maps. Takes no lock, since the thread that held it may not exist here.
  void forget();

 private:
  void count_exact(const flow_key& key, int change);

  std::mutex lock_;
  UniqueFd flows_;
  UniqueFd hints_;
  flow_hints hint_{};
};

}  // namespace ringsock::soft
