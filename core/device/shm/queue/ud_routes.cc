#include "core/device/shm/queue/ud_routes.h"

#include <sys/stat.h>

#include <cerrno>

#include "core/base/clock.h"
#include "core/base/refusals.h"

namespace ringsock::soft {

UdRoutes::Route* UdRoutes::find(std::uint32_t qp_num) {
  if (last_ != nullptr && last_number_ == qp_num) return last_;
  const auto found = routes_.find(qp_num);
  if (found == routes_.end()) return nullptr;
  last_number_ = qp_num;
  last_ = &found->second;
  return last_;
}

Result<UniqueFd> UdRoutes::add(std::uint32_t qp_num) {
  if (routes_.size() >= kMost) return Error{ENOSPC, "ud routes"};
  auto segment = make_segment(kUdSegmentBytes);
  if (!segment) return segment.error();
  last_ = nullptr;
  routes_.emplace(qp_num, Route{UdRingWriter(std::move(segment->mapping)), ticks()});
  return std::move(segment->memfd);
}

void UdRoutes::drop(std::uint32_t qp_num) {
  last_ = nullptr;
  routes_.erase(qp_num);
}

void UdRoutes::end() {
  for (auto& [number, route] : routes_) route.ring.end();
}

void UdRoutes::forget() {
  last_ = nullptr;
  routes_.clear();
}

Status UdIncoming::add(UniqueFd memory, std::uint32_t source) {
  struct stat status {};
  if (::fstat(memory.get(), &status) != 0) return Error::last("ud ring");
  const MemoryName name{status.st_dev, status.st_ino, 0, 0};
  auto segment = map_peer_segment(std::move(memory), name, kUdSegmentBytes);
  if (!segment) return segment.error();
  if ((*segment)->bytes() != kUdSegmentBytes) return Error{EPROTO, "ud ring: size"};
  Ring ring{UdRingReader(*std::move(segment)), source, rings_.size() >= kMost};
  if (ring.is_surplus) ring.reader.close();
  ring.reader.tell_sole(!has_heirs_);
  if (rings_.size() >= kMost + kMostSurplus) return Error{ENOSPC, "ud rings"};
  rings_.push_back(std::move(ring));
  return ok();
}

void UdIncoming::drop(std::size_t index) {
  rings_[index].reader.close();
  rings_[index] = std::move(rings_.back());
  rings_.pop_back();
}

void UdIncoming::arm() {
  for (Ring& ring : rings_) {
    ring.reader.arm();
    if (ring.reader.lost() != 0) count_refusal(Refusal::receive_buffer);
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void UdIncoming::tell_heirs() {
  has_heirs_ = true;
  for (Ring& ring : rings_) ring.reader.tell_sole(false);
}

void UdIncoming::close() {
  for (Ring& ring : rings_) ring.reader.close();
}

}  // namespace ringsock::soft
