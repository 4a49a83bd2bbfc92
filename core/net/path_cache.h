// The kernel's answers about paths, as long as they hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>

#include "core/base/clock.h"
#include "core/net/path.h"

namespace ringsock::net {

/// Forgets exactly what a change in the kernel may have made wrong, and says whether anybody was told it: route tables
/// with busy routing daemons change all day without touching a flow of ours. Threads: one at a time.
///
/// Two halves: answers go into the young one, and are moved there when they are used; when it is full, the old one is
/// dropped and the young one becomes old.
class PathCache {
 public:
  /// @param half_capacity  Answers in each half, about 200 bytes each.
  explicit PathCache(std::size_t half_capacity) : half_capacity_(half_capacity) {}

  std::optional<Path> find(const PathQuery& query);

  /// Grows with each change. What was asked before it and inserted after it would be wrong without anybody's noticing.
  [[nodiscard]] std::uint64_t changes() const { return changes_; }
  /// @param expires  Time after which the answer must be asked again; 0: never.
  void insert(const PathQuery& query, const Path& path, Nanos expires);

  // What may have changed. @return whether an answer that was given is among it; dropped ones count as any.
  bool forget_to(const Prefix& destinations);
  bool forget_family(int family);  ///< AF_UNSPEC: both
  bool forget_expired(Nanos now);
  [[nodiscard]] Nanos next_expiry() const { return next_expiry_; }  ///< 0: none; maybe too early

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
  bool dropped_ = false;  ///< answers were given that are in neither half
  std::uint64_t changes_ = 0;
  Nanos next_expiry_{};
};

}  // namespace ringsock::net
