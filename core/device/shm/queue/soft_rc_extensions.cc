#include "core/device/shm/queue/soft_rc_extensions.h"

#include <unistd.h>

#include <cerrno>

#include "core/device/shm/memory/ready_maps.h"
#include "core/device/shm/memory/segment_cache.h"
#include "core/device/shm/queue/reliable_queue_pair.h"

namespace ringsock::soft {

namespace {

ReliableQueuePair& ours(ibv_qp& qp) { return static_cast<ReliableQueuePair&>(static_cast<QueuePair&>(qp)); }

}  // namespace

int SoftRcExtensions::write_at_once(ibv_qp& qp, const verbs::InlineWrite& write) {
  return qp.qp_type == IBV_QPT_RC ? ours(qp).write_at_once(write) : EAGAIN;
}

int SoftRcExtensions::write_pair_at_once(ibv_qp& qp, const verbs::WritePair& pair) {
  if (qp.qp_type != IBV_QPT_RC) return EAGAIN;
  return ours(qp).with_sends([&](SendQueue& sends) { return sends.write_pair_at_once(pair); });
}

int SoftRcExtensions::post_counted(ibv_qp& qp, std::uint64_t wr_id, std::uint32_t count) {
  return qp.qp_type == IBV_QPT_RC ? ours(qp).receiver().post_counted(wr_id, count) : EOPNOTSUPP;
}

bool SoftRcExtensions::ask_for_stamps(ibv_qp& qp) {
  if (qp.qp_type != IBV_QPT_RC) return false;
  ours(qp).receiver().ask_for_stamps();
  return true;
}

std::uint64_t SoftRcExtensions::peer_group(ibv_qp& qp) {
  if (qp.qp_type != IBV_QPT_RC || !wakes_through_connection_) return 0;
  return ours(qp).peer_group();
}

bool SoftRcExtensions::is_own_process(ibv_qp& qp) {
  return qp.qp_type == IBV_QPT_RC && ours(qp).peer_process().pid == ::getpid();
}

std::byte* SoftRcExtensions::peer_memory(ibv_qp& qp, std::uint32_t key, std::uint64_t address, std::size_t length) {
  if (qp.qp_type != IBV_QPT_RC) return nullptr;
  return ours(qp).with_sends(
      [&](SendQueue& sends) { return sends.is_wired() ? sends.regions().memory(key, address, length) : nullptr; });
}

bool SoftRcExtensions::has_sent_all(ibv_qp& qp) {
  return qp.qp_type == IBV_QPT_RC && ours(qp).with_sends([](const SendQueue& sends) { return sends.is_direct(); });
}

std::optional<verbs::SavedQueuePair> SoftRcExtensions::save(ibv_qp& qp) {
  if (qp.qp_type != IBV_QPT_RC) return std::nullopt;
  return ours(qp).save();
}

Status SoftRcExtensions::restore(ibv_qp& qp, const verbs::SavedQueuePair& saved) {
  if (qp.qp_type != IBV_QPT_RC) return Error{EINVAL, "restore: type"};
  return ours(qp).restore(saved);
}

bool SoftRcExtensions::is_untouched_since(ibv_qp& qp, const verbs::SavedQueuePair& saved) {
  return qp.qp_type == IBV_QPT_RC && ours(qp).is_untouched_since(saved);
}

void SoftRcExtensions::leaves_traces(ibv_qp& qp) {
  if (qp.qp_type == IBV_QPT_RC) ours(qp).memory().forget_peers();
}

std::size_t SoftRcExtensions::sparse_memory(ibv_qp& qp, const std::byte* start) {
  return qp.qp_type == IBV_QPT_RC ? ours(qp).memory().sparse_memory(start) : 0;
}

std::optional<std::size_t> SoftRcExtensions::keep_sparse(ibv_qp& qp, const verbs::SparseMemory& own,
                                                         const verbs::SparseMemory& peers, bool is_read) {
  if (qp.qp_type != IBV_QPT_RC || !ours(qp).memory().keep_sparse(own, peers, is_read)) return std::nullopt;
  return segment_cache().idle_sparse_memory() + own.used + peers.used;
}

bool SoftRcExtensions::give_back_sparse(Nanos now) { return segment_cache().give_back(now); }

void SoftRcExtensions::add_hot_lines(ibv_qp& qp, HotLines& lines) {
  if (qp.qp_type != IBV_QPT_RC) return;
  ours(qp).add_hot_lines(lines);
  ours(qp).receive_queue().add_hot_lines(lines);
}

Result<std::shared_ptr<ReadyMap>> SoftRcExtensions::make_ready_map() { return OwnReadyMap::make(); }

Listing SoftRcExtensions::list_at(ibv_qp& qp, const std::shared_ptr<ReadyMap>& map, std::uint32_t place) {
  return ours(qp).arming().list_at(map, place);
}

void SoftRcExtensions::unlist(ibv_qp& qp) { ours(qp).arming().unlist(); }

void SoftRcExtensions::arm_for_good(ibv_qp& qp) { ours(qp).arming().arm_for_good(); }

}  // namespace ringsock::soft
