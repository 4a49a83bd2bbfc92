#include "core/device/shm/memory/segment_batch.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <utility>

namespace ringsock::soft {

namespace {
/// Returns a bit for each part.
constexpr std::uint32_t all_of(std::uint32_t parts) {
  return static_cast<std::uint32_t>((std::uint64_t{1} << parts) - 1);
}
}  // namespace

/// The mapping, which the segments of its parts share.
class MappedParts::Whole {
 public:
  Whole(std::byte* base, std::size_t part_bytes, std::uint32_t parts)
      : base_(base), part_bytes_(part_bytes), mapped_(all_of(parts)) {}
  Whole(const Whole&) = delete;
  Whole& operator=(const Whole&) = delete;
  ~Whole() { unmap(mapped_); }

  [[nodiscard]] std::byte* part(std::uint32_t number) const { return base_ + number * part_bytes_; }
  /// Unmaps parts, neighbours together.
  void unmap(std::uint32_t parts) {
    mapped_ &= ~parts;
    while (parts != 0) {
      const int first = std::countr_zero(parts);
      const int count = std::countr_one(parts >> first);
      ::munmap(part(static_cast<std::uint32_t>(first)), static_cast<std::size_t>(count) * part_bytes_);
      parts &= ~(all_of(static_cast<std::uint32_t>(count)) << first);
    }
  }

 private:
  std::byte* const base_;
  const std::size_t part_bytes_;
  std::uint32_t mapped_;
};

MappedParts::MappedParts(MappedSegment& whole, std::uint32_t parts)
    : whole_(std::make_shared<Whole>(whole.base(), whole.bytes() / parts, parts)),
      part_bytes_(whole.bytes() / parts),
      parts_(parts),
      left_(all_of(parts)) {
  [[maybe_unused]] const std::byte* const base = whole.release();
}

MappedParts& MappedParts::operator=(MappedParts&& other) noexcept {
  std::swap(whole_, other.whole_);
  std::swap(part_bytes_, other.part_bytes_);
  std::swap(parts_, other.parts_);
  std::swap(left_, other.left_);
  return *this;
}

MappedParts::~MappedParts() {
  if (left_ != 0) whole_->unmap(left_);
}

std::uint32_t MappedParts::next() const {
  return left_ == 0 ? parts_ : static_cast<std::uint32_t>(std::countr_zero(left_));
}

std::shared_ptr<MappedSegment> MappedParts::take(std::uint32_t part) {
  const std::uint32_t bit = part < parts_ ? std::uint32_t{1} << part : 0;
  if ((left_ & bit) == 0) return nullptr;
  // Made first, because that may fail.
  auto out = std::make_shared<MappedSegment>(whole_->part(part), part_bytes_);
  left_ &= ~bit;
  out->become_part(whole_);
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
