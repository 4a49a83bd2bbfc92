#include "core/device/shm/memory/segment_batch.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <utility>

namespace ringsock::soft {

MappedParts::MappedParts(MappedSegment& whole, std::uint32_t parts)
    : part_bytes_(whole.bytes() / parts),
      parts_(parts),
      left_(static_cast<std::uint32_t>((std::uint64_t{1} << parts) - 1)) {
  base_ = whole.release();
}

MappedParts& MappedParts::operator=(MappedParts&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(part_bytes_, other.part_bytes_);
  std::swap(parts_, other.parts_);
  std::swap(left_, other.left_);
  return *this;
}

/// Unmaps neighbours together.
MappedParts::~MappedParts() {
  while (left_ != 0) {
    const int first = std::countr_zero(left_);
    const int count = std::countr_one(left_ >> first);
    ::munmap(base_ + static_cast<std::size_t>(first) * part_bytes_, static_cast<std::size_t>(count) * part_bytes_);
    left_ &= ~static_cast<std::uint32_t>(((std::uint64_t{1} << count) - 1) << first);
  }
}

std::uint32_t MappedParts::next() const {
  return left_ == 0 ? parts_ : static_cast<std::uint32_t>(std::countr_zero(left_));
}

std::shared_ptr<MappedSegment> MappedParts::take(std::uint32_t part) {
  const std::uint32_t bit = part < parts_ ? std::uint32_t{1} << part : 0;
  if ((left_ & bit) == 0) return nullptr;
  // Made first, because that may fail.
  auto out = std::make_shared<MappedSegment>(base_ + part * part_bytes_, part_bytes_);
  left_ &= ~bit;
  out->become_part();
  return out;
}

Status OwnBatch::make(std::uint64_t bytes) {
  const auto parts = static_cast<std::uint32_t>(std::min<std::uint64_t>(kMostParts, kMostBatchBytes / bytes));
  if (parts < 2) return Error{EFBIG, "segments: too large"};
  auto whole = make_segment(bytes * parts);
  if (!whole) return whole.error();
  const Inode inode = Inode::of(whole->memfd);
  memfd_ = std::make_shared<const KeptDescriptor>(std::move(whole->memfd), inode);
  parts_ = MappedParts(*whole->mapping, parts);
  return ok();
}

Result<OwnBatch::Taken> OwnBatch::take(std::uint64_t bytes) {
  const bool has_some = parts_.next() != parts_.parts() && parts_.part_bytes() == bytes;
  if (!has_some) {
    if (Status made = make(bytes); !made) return made.error();
  }
  const std::uint32_t part = parts_.next();
  const MemoryName name{memfd_->inode.device, memfd_->inode.number, static_cast<std::uint32_t>(memfd_->fd.get()), 0};
  Taken out{parts_.take(part), {memfd_, &memfd_->fd}, name, part, parts_.parts()};
  // The connections that have parts keep the descriptor as long as it is needed.
  if (parts_.next() == parts_.parts()) memfd_.reset();
  return out;
}

std::shared_ptr<MappedSegment> GivenBatches::take(Inode memfd, PeerProcess maker, std::uint32_t part) {
  const auto place =
      std::ranges::find_if(batches_, [&](const Batch& batch) { return batch.memfd == memfd && batch.maker == maker; });
  if (place == batches_.end()) return nullptr;
  auto out = place->parts.take(part);
  batches_.splice(batches_.begin(), batches_, place);
  if (place->parts.next() == place->parts.parts()) batches_.erase(place);
  return out;
}

std::shared_ptr<MappedSegment> GivenBatches::add(Inode memfd, PeerProcess maker, MappedParts parts,
                                                 std::uint32_t part) {
  std::erase_if(batches_, [&](const Batch& batch) { return batch.memfd == memfd; });
  batches_.push_front({memfd, maker, std::move(parts)});
  if (batches_.size() > kMostKept) batches_.pop_back();
  return take(memfd, maker, part);
}

}  // namespace ringsock::soft
