// The kernel's answers about paths, as long as they are valid.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>

#include "core/base/clock.h"
#include "core/net/path.h"

namespace ringsock::net {

/// Forgets exactly the answers that a change in the kernel may have made wrong, and reports whether any of them was
/// handed out: routing daemons change tables all day without affecting a flow of this process. Threads: one at a time.
///
/// The cache has two halves. Answers are stored in the young half, and moved there when they are used. When it is full,
/// the old half is dropped and the young half becomes old.
class PathCache {
 public:
  /// @param half_capacity  Answers in each half, about 200 bytes each.
  explicit PathCache(std::size_t half_capacity) : half_capacity_(half_capacity) {}

  std::optional<Path> find(const PathQuery& query);

  /// Grows with each change. An answer that was requested before a change and inserted after it could be wrong, and
  /// would not be noticed.
  [[nodiscard]] std::uint64_t changes() const { return changes_; }
  /// @param expires  Time after which the answer must be asked again; 0: never.
  void insert(const PathQuery& query, const Path& path, Nanos expires);

  // Forget answers that may have changed. @return whether one of them was handed out; answers that were dropped for
  // room may be any, and count as affected.
  bool forget_to(const Prefix& destinations);
  bool forget_family(int family);  ///< AF_UNSPEC: both families
  bool forget_expired(Nanos now);
  [[nodiscard]] Nanos next_expiry() const { return next_expiry_; }  ///< 0: none; may be too early

 private:
  struct Entry {
    Path path;
    Nanos expires;
  };
  using Half = std::unordered_map<PathQuery, Entry>;

  template <class Condition>
  bool forget_if(Condition condition);
  void make_room();

  const std::size_t half_capacity_;
  Half young_;
  Half old_;
  bool dropped_ = false;  ///< answers were handed out that are in neither half
  std::uint64_t changes_ = 0;
  Nanos next_expiry_{};
};

}  // namespace ringsock::net
