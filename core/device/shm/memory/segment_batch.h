// Segments that are made many at a time, for processes whose connections stay open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/device/shm/link/peer_process.h"
#include "core/device/shm/memory/kept_descriptor.h"
#include "core/device/shm/memory/segment.h"

namespace ringsock::soft {

/// Nearly all of a segment's cost is that of its memfd, the seals and the mappings. So a process that has no segment to
/// use again makes a memfd with room for several. Each part is a segment of its own: it serves one connection, and its
/// pages go to the kernel once both ends have given it up (MappedSegment::become_part()). It stays mapped until its
/// neighbours are given up, too: to unmap each alone costs ten times as much as all else at the end of a connection.
///
/// Only processes of one user share a memfd, and the peer gets it only by opening it (open_memory.h), which the kernel
/// permits to those that may read all memory of the maker. Both ends drop the parts that no connection has had when
/// they fork, so that no child has memory of a later connection.
inline constexpr std::uint32_t kMostParts = 16;
inline constexpr std::uint64_t kMostBatchBytes = std::uint64_t{256} << 20;

/// The mapping of a memfd that becomes segments. Unmaps the parts that were not taken. Threads: one at a time.
class MappedParts {
 public:
  MappedParts() = default;
  /// @param whole  gives its mapping up; its size is a multiple of as many pages
  /// @param parts  1..kMostParts
  MappedParts(MappedSegment& whole, std::uint32_t parts);
  MappedParts(MappedParts&& other) noexcept { *this = std::move(other); }
  MappedParts& operator=(MappedParts&& other) noexcept;
  ~MappedParts();

  /// Returns a part, null: there is no such part, or it was taken.
  std::shared_ptr<MappedSegment> take(std::uint32_t part);
  [[nodiscard]] std::uint32_t parts() const { return parts_; }
  [[nodiscard]] std::size_t part_bytes() const { return part_bytes_; }
  /// Returns the first part that was not taken, parts(): none.
  [[nodiscard]] std::uint32_t next() const;

 private:
  class Whole;
  std::shared_ptr<Whole> whole_;
  std::size_t part_bytes_ = 0;
  std::uint32_t parts_ = 0;
  std::uint32_t left_ = 0;  ///< a bit for each part
};

/// The parts that this process has made. Threads: one at a time.
class OwnBatch {
 public:
  struct Taken {
    std::shared_ptr<MappedSegment> mapping;
    std::shared_ptr<const UniqueFd> memfd;
    MemoryName name;
    std::uint32_t part;
    std::uint32_t parts;
  };
  /// Takes a part of `bytes`, of a new memfd if none is left. The peer compares the file that it opens with the name,
  /// so a number that the program has closed or used for another file is not noticed here. Errors: EFBIG larger than
  /// half of kMostBatchBytes; those of make_segment().
  Result<Taken> take(std::uint64_t bytes);

 private:
  Status make(std::uint64_t bytes);
  std::shared_ptr<const KeptDescriptor> memfd_;
  MappedParts parts_;
};

/// The parts of peers' memfds that are mapped here and that no connection has had. Threads: one at a time.
class GivenBatches {
 public:
  static constexpr std::size_t kMostKept = 8;

  /// Returns a part, null: it is not here, or was taken.
  std::shared_ptr<MappedSegment> take(Inode memfd, PeerProcess maker, std::uint32_t part);
  /// Takes one part of a mapped memfd and keeps the others, in place of those of the memfd not used for longest.
  std::shared_ptr<MappedSegment> add(Inode memfd, PeerProcess maker, MappedParts parts, std::uint32_t part);

 private:
  struct Batch {
    Inode memfd;
    PeerProcess maker;
    MappedParts parts;
  };
  std::list<Batch> batches_;  ///< the last used in front
};

}  // namespace ringsock::soft
