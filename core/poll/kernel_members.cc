#include "core/poll/kernel_members.h"

#include <poll.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "core/base/clock.h"
#include "core/base/own_duplicate.h"
#include "core/base/poll_until.h"
#include "core/base/rare_calls.h"
#include "core/poll/epoll_file.h"
#include "core/poll/kernel_looks.h"

namespace ringsock::runtime {

namespace {

/// While endpoints have something to report, the kernel is asked once in this many rounds, or after this time (in units
/// of order_stamp(), about 25 us). It is asked every other round while its members have something to report, too.
constexpr unsigned kRoundsPerLook = 8;
constexpr std::uint32_t kTimePerLook = 2048;
/// More than the number of threads that wait for a set when it is adopted.
constexpr int kRingsAfterAdoption = 64;

/// The event data of our doorbells in the kernel's set of an adopted set: the address of a variable of ours, which no
/// data of the application equals.
std::uint64_t wake_up_tag() {
  static const char tag = 0;
  return reinterpret_cast<std::uintptr_t>(&tag);
}

}  // namespace

Status KernelMembers::control(int op, int fd, const epoll_event* event) {
  Status done = control_epoll_file(file(), op, fd, event);
  if (done && op == EPOLL_CTL_ADD) may_have_some();
  return done;
}

namespace {
bool is_same_file(int fd, int other) {
  struct stat one {
  }, two{};
  return ::fstat(fd, &one) == 0 && ::fstat(other, &two) == 0 && one.st_dev == two.st_dev && one.st_ino == two.st_ino;
}
}  // namespace

Status KernelMembers::add_left(int fd, int open_fd, const epoll_event& event) {
  if (fd == open_fd || open_fd < 0 || is_same_file(fd, open_fd)) return control(EPOLL_CTL_ADD, fd, &event);
  const UniqueFd again = own_duplicate(open_fd);
  if (!again) return Error::last("dup");
  return control(EPOLL_CTL_ADD, again.get(), &event);
}

Status KernelMembers::nest(const Doorbells& doorbells) {
  const epoll_event wake_up{EPOLLIN, {.u64 = wake_up_tag()}};
  Status nested = control_epoll_file(file(), EPOLL_CTL_ADD, doorbells.file(), &wake_up);
  if (!nested) return nested;
  has_nested_ = true;
  rings_left_.store(kRingsAfterAdoption);
  return ok();
}

Status KernelMembers::require_epoll_file(const Doorbells& doorbells) const {
  Status none = control_epoll_file(file(), EPOLL_CTL_DEL, doorbells.file(), nullptr);
  return none || none.error().code == ENOENT ? ok() : none;
}

epoll_event KernelMembers::disabled_event() { return {EPOLLET, {.u64 = wake_up_tag()}}; }

int KernelMembers::forget_wake_up(epoll_event* events, int count) {
  const auto is_wake_up = [](const epoll_event& event) { return event.data.u64 == wake_up_tag(); };
  return static_cast<int>(std::remove_if(events, events + count, is_wake_up) - events);
}

bool KernelMembers::is_turn(unsigned hits) {
  const unsigned rounds = rounds_since_look_.fetch_add(1, std::memory_order_relaxed);
  if (hits != KernelLooks::kAutomatic) [[unlikely]]
    return rounds >= hits;
  return rounds >= kRoundsPerLook || (rounds > 0 && had_events_.load(std::memory_order_relaxed)) ||
         order_stamp() - looked_at_.load(std::memory_order_relaxed) > kTimePerLook;
}

void KernelMembers::look_next_time() { rounds_since_look_.store(KernelLooks::kRareHits, std::memory_order_relaxed); }

Result<int> KernelMembers::look(std::span<epoll_event> events, const sigset_t* mask, bool& doorbells_rang) {
  rounds_since_look_.store(0, std::memory_order_relaxed);
  doorbells_rang = true;
  Result<int> ready = 0;
  if (has_some_.load(std::memory_order_relaxed)) ready = take(events, doorbells_rang);
  if (!ready) return ready;
  // Where ppoll(2) is forbidden the sleep that follows lets signals through.
  if (*ready == 0 && mask && !is_known_forbidden(RareCall::ppoll)) {
    const Result<int> passed = poll_until({}, Nanos::zero(), mask);
    if (!passed) return passed.error();
  }
  looked_at_.store(order_stamp(), std::memory_order_relaxed);
  had_events_.store(*ready > 0, std::memory_order_relaxed);
  return ready;
}

Result<int> KernelMembers::take(std::span<epoll_event> events, bool& doorbells_rang) {
  const std::size_t most = std::min<std::size_t>(events.size(), INT_MAX / sizeof(epoll_event));
  const epoll_event before = events.front();
  int ready = ::epoll_wait(file(), events.data(), static_cast<int>(most), 0);
  int left = ready > 0 ? forget_wake_up(events.data(), ready) : 0;
  if (left == 0 && ready == 1 && most == 1) {
    // The doorbells took the place of another event.
    ready = ::epoll_wait(file(), events.data(), 1, 0);
    left = ready > 0 ? forget_wake_up(events.data(), ready) : 0;
  }
  if (ready < 0) return Error::last("epoll_wait");
  if (left == 0) events.front() = before;  // programs use the entry again
  doorbells_rang = !has_nested_ || left != ready || static_cast<std::size_t>(ready) == most;
  return left;
}

bool KernelMembers::is_ready() const {
  if (!has_some_.load(std::memory_order_relaxed)) return false;
  pollfd entry{file(), POLLIN, 0};
  return ::poll(&entry, 1, 0) > 0;
}

}  // namespace ringsock::runtime
