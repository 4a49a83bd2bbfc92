#include "librsocket/queue_pair_memory.h"

#include <utility>

#include "core/wire/rs_connect.h"
#include "librsocket/buffer_tables.h"

namespace ringsock::rs {

namespace {

constexpr std::size_t kRingAlignment = 64;
constexpr std::size_t kPageBytes = 4096;

constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

std::size_t ring_offset(const QueueSettings& settings) {
  const std::size_t words = settings.receive_overflow != 0 ? wire::kRsOverflowWordBytes : 0;
  return round_up(BufferTables::size(settings), kRingAlignment) + words;
}

std::size_t overflow_bytes(const QueueSettings& settings) { return round_up(settings.receive_overflow, kPageBytes); }

Result<verbs::ConnectionQp> create_queue_pair(verbs::ConnectionId& id, ibv_pd& pd, ibv_qp_init_attr& attr,
                                              QueueSettings& settings, std::uint32_t requests_more) {
  if (settings.receive_overflow != 0) {
    ibv_qp_init_attr wished = attr;
    wished.cap.max_send_wr += requests_more;
    const std::size_t area = overflow_bytes(settings);
    auto qp = id.create_qp(pd, wished, {ring_offset(settings) + settings.receive_ring + area, area});
    if (qp) {
      attr.cap = wished.cap;
      return qp;
    }
    settings.receive_overflow = 0;
  }
  return id.create_qp(pd, attr, ring_offset(settings) + settings.receive_ring);
}

}  // namespace

Status QueuePairMemory::create(verbs::ConnectionId& id, ibv_pd& pd, ibv_qp_init_attr& attr, QueueSettings& settings,
                               std::uint32_t requests_more) {
  auto created = create_queue_pair(id, pd, attr, settings, requests_more);
  if (!created) return created.error();
  memory_ = *std::move(created);
  ring_ = memory_.receive_memory.data() + ring_offset(settings);
  return ok();
}

std::byte* QueuePairMemory::overflow_words() const { return ring_ - wire::kRsOverflowWordBytes; }

std::span<std::byte> QueuePairMemory::overflow_area(const QueueSettings& settings) const {
  return memory_.receive_memory.last(overflow_bytes(settings)).first(settings.receive_overflow);
}

}  // namespace ringsock::rs
