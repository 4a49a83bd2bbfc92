// What the embedded device offers for reliable connections beyond libibverbs.
#pragma once

#include "core/verbs/rc_extensions.h"

namespace ringsock::soft {

/// Queue pairs of other types have nothing of it. Threads: as verbs::RcExtensions.
class SoftRcExtensions final : public verbs::RcExtensions {
 public:
  /// @param wakes_through_connection  verbs::DeviceTraits; without it there are no groups of peers
  explicit SoftRcExtensions(bool wakes_through_connection) : wakes_through_connection_(wakes_through_connection) {}

  int write_at_once(ibv_qp& qp, const verbs::InlineWrite& write) override;
  int write_pair_at_once(ibv_qp& qp, const verbs::WritePair& pair) override;
  int post_counted(ibv_qp& qp, std::uint64_t wr_id, std::uint32_t count) override;
  bool ask_for_stamps(ibv_qp& qp) override;
  [[nodiscard]] std::uint64_t peer_group(ibv_qp& qp) override;
  Result<std::shared_ptr<ReadyMap>> make_ready_map() override;
  Listing list_at(ibv_qp& qp, const std::shared_ptr<ReadyMap>& map, std::uint32_t place) override;
  void unlist(ibv_qp& qp) override;
  void arm_for_good(ibv_qp& qp) override;
  [[nodiscard]] bool is_own_process(ibv_qp& qp) override;
  std::byte* peer_memory(ibv_qp& qp, std::uint32_t key, std::uint64_t address, std::size_t length) override;
  bool has_sent_all(ibv_qp& qp) override;
  std::optional<verbs::SavedQueuePair> save(ibv_qp& qp) override;
  Status restore(ibv_qp& qp, const verbs::SavedQueuePair& saved) override;
  bool is_untouched_since(ibv_qp& qp, const verbs::SavedQueuePair& saved) override;
  void leaves_traces(ibv_qp& qp) override;
  std::size_t sparse_memory(ibv_qp& qp, const std::byte* start) override;
  std::optional<std::size_t> keep_sparse(ibv_qp& qp, const verbs::SparseMemory& own, const verbs::SparseMemory& peers,
                                         bool is_read) override;
  bool give_back_sparse(Nanos now) override;
  void add_hot_lines(ibv_qp& qp, HotLines& lines) override;

 private:
  const bool wakes_through_connection_;
};

}  // namespace ringsock::soft
