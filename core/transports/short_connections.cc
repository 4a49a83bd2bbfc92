#include "core/transports/short_connections.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <mutex>
#include <string_view>

#include "core/base/at_fork.h"

namespace ringsock::transports {

namespace {

constexpr std::size_t kMostOpen = 1'024;

/// Returns whether the kernel's time is clearly the shorter one: at nearly equal speed the way is kept.
bool is_clearly_shorter(Nanos kernel, Nanos way) { return kernel * 10 < way * 9; }
/// Returns whether measuring again is not worth its cost.
bool are_far_apart(Nanos one, Nanos other) { return one / 2 > other || other / 2 > one; }
/// Returns the connections that the faster one must make so that `tried` ones of the slower one were a small part of
/// their time.
unsigned worth_of(Nanos faster, Nanos slower, unsigned tried) {
  constexpr double kMost = 4.0 * ShortConnections::kLongestStretch;
  const double excess =
      static_cast<double>((slower - faster).count()) / static_cast<double>(std::max(faster, Nanos(1)).count());
  const double worth = excess * tried * ShortConnections::kWorth;
  return static_cast<unsigned>(std::min(worth, kMost));
}

}  // namespace

bool ShortConnections::is_kernels(const SocketAddress& destination, int descriptor, Nanos now) noexcept {
  const std::lock_guard guard(lock_);
  Course* const course = find(destination, now);
  return course != nullptr && course->next(descriptor, now) == Maker::kernel;
}

bool ShortConnections::are_still_kernels(const SocketAddress& destination, int descriptor, Nanos now) noexcept {
  const std::lock_guard guard(lock_);
  Course& course = courses_[place_of(destination)];
  if (!course.is_to(destination) || course.is_over(now) || !course.is_still_kernels(descriptor)) return false;
  return course.next(descriptor, now) == Maker::kernel;
}

void ShortConnections::ended(const SocketAddress& destination) noexcept {
  const std::lock_guard guard(lock_);
  Course& course = courses_[place_of(destination)];
  if (course.is_to(destination)) course.ended();
}

/// Returns the course of that destination, null while another one has its place.
ShortConnections::Course* ShortConnections::find(const SocketAddress& destination, Nanos now) {
  Course& course = courses_[place_of(destination)];
  if (course.is_over(now)) {
    course.begin(destination, now);
  } else if (!course.is_to(destination)) {
    return nullptr;
  }
  return &course;
}

std::size_t ShortConnections::place_of(const SocketAddress& destination) {
  const bool is_v4 = destination.family() == AF_INET;
  const auto* const host = is_v4 ? static_cast<const void*>(&destination.in4().sin_addr)
                                 : static_cast<const void*>(&destination.in6().sin6_addr);
  const std::string_view bytes(static_cast<const char*>(host), is_v4 ? sizeof(in_addr) : sizeof(in6_addr));
  return (std::hash<std::string_view>{}(bytes) + destination.port()) % std::tuple_size_v<decltype(courses_)>;
}

/// A thread that the child does not have may have locked it.
void ShortConnections::survive_fork() { hold_across_fork(lock_); }

// -- one destination ---------------------------------------------------------------------------------

void ShortConnections::Course::begin(const SocketAddress& destination, Nanos now) {
  *this = Course();
  destination_ = destination;
  last_ = now;
  compare_again();
}

ShortConnections::Maker ShortConnections::Course::maker() const {
  if (is_settled()) return faster_;
  return measurement_ % 2 == 0 ? Maker::way : Maker::kernel;
}

ShortConnections::Maker ShortConnections::Course::next(int descriptor, Nanos now) {
  last_ = std::max(last_, now);
  if (left_ == 0) step_on(now);
  --left_;
  if (maker() == Maker::kernel && are_more_open(descriptor)) stay_with_way();
  if (maker() == Maker::kernel) return Maker::kernel;
  highest_descriptor_ = std::max(highest_descriptor_, descriptor);
  ++made_;
  return Maker::way;
}

void ShortConnections::Course::compare_again() {
  measurement_ = 0;
  warms_up_ = true;
  ended_before_ = ended_;
  left_ = kWarmUp + at_a_time_;
  best_ = {Nanos::max(), Nanos::max()};
  highest_descriptor_ = -1;
}

/// The last connection of a warm-up, a measurement or a stretch was made.
void ShortConnections::Course::step_on(Nanos now) {
  if (is_settled() || (!warms_up_ && maker() == Maker::way && have_stayed_open())) return compare_again();
  if (!warms_up_) return measured(now - began_);
  if (maker() == Maker::way && ended_ - ended_before_ < kWarmUp / 2) {
    ended_before_ = ended_;
    left_ = kWarmUp;
    return;
  }
  warms_up_ = false;
  began_ = now;
  ended_before_ = ended_;
  left_ = kMeasured;
}

void ShortConnections::Course::measured(Nanos took) {
  Nanos& best = best_[static_cast<std::size_t>(maker())];
  best = std::min(best, took);
  if (maker() == Maker::way)
    at_a_time_ = static_cast<unsigned>(std::min<std::uint64_t>(made_ - std::min(made_, ended_), kMostOpen));
  ++measurement_;
  if (measurement_ == kMeasurements / 2 && are_far_apart(best_[0], best_[1])) measurement_ = kMeasurements;
  if (is_settled()) return settle();
  warms_up_ = true;
  ended_before_ = ended_;
  left_ = kWarmUp + at_a_time_;
}

void ShortConnections::Course::settle() {
  const auto [way, kernel] = best_;
  const Maker faster = is_clearly_shorter(kernel, way) ? Maker::kernel : Maker::way;
  stretch_ = faster == faster_ && stretch_ != 0 ? std::min(2 * stretch_, kLongestStretch) : kFirstStretch;
  faster_ = faster;
  // What warmed up has cost as much as what was measured.
  const unsigned rounds = are_far_apart(way, kernel) ? 1 : kMeasurements / 2;
  const unsigned tried = rounds * (kWarmUp + at_a_time_ + kMeasured);
  left_ = std::max(stretch_, worth_of(std::min(way, kernel), std::max(way, kernel), tried));
}

void ShortConnections::Course::stay_with_way() {
  measurement_ = kMeasurements;
  faster_ = Maker::way;
  stretch_ = 0;
  left_ = kLongestStretch;
}

}  // namespace ringsock::transports
