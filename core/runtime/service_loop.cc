#include "core/runtime/service_loop.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "core/base/raised_limit.h"
#include "core/base/rare_calls.h"

namespace ringsock::runtime {

namespace {

epoll_event event_of_bell() { return {EPOLLIN, {.u64 = 0}}; }

/// Returns false under a filter that forbids a call of the proof. Such a process has no rings, and a child of it may do
/// nothing else than end.
bool may_be_proved() {
  using enum RareCall;
  return !is_known_forbidden(fstat) && !is_known_forbidden(fstat_at) && !is_known_forbidden(RareCall::epoll_ctl);
}

}  // namespace

Result<FileIdentity> FileIdentity::of(int fd) {
  struct stat about {};
  if (::fstat(fd, &about) != 0) return Error::last("fstat");
  return FileIdentity{about.st_dev, about.st_ino};
}

Result<std::shared_ptr<ServiceLoop>> ServiceLoop::make() {
  std::shared_ptr<ServiceLoop> loop(new ServiceLoop);
  if (!is_permitted(RareCall::pipe2)) return Error{EPERM, "service thread: pipe2"};
  const RaisedLimit beyond_full_table;
  std::array<int, 2> ends{-1, -1};
  if (::pipe2(ends.data(), O_NONBLOCK | O_CLOEXEC) != 0) return Error::last("service thread: pipe2");
  loop->bell_ = out_of_the_way(UniqueFd(ends[0]));
  loop->ringer_ = out_of_the_way(UniqueFd(ends[1]));
  const auto pipe = FileIdentity::of(loop->bell_.get());
  if (!pipe) return pipe.error();
  loop->pipe_ = *pipe;
  loop->events_ = out_of_the_way(UniqueFd(::epoll_create1(EPOLL_CLOEXEC)));
  epoll_event event = event_of_bell();
  if (!loop->events_ || ::epoll_ctl(loop->events(), EPOLL_CTL_ADD, loop->bell(), &event) != 0)
    return Error::last("service thread: epoll");
  return loop;
}

bool ServiceLoop::is_of_bell(const UniqueFd& end) const {
  const auto found = FileIdentity::of(end.get());
  return found && *found == pipe_;
}

bool ServiceLoop::is_ours() const {
  const int saved_errno = errno;
  // The bell proves that the set is ours: no other epoll set has it, and EPOLL_CTL_MOD fails for a descriptor that is
  // not in the set.
  epoll_event event = event_of_bell();
  const bool ours = is_of_bell(bell_) && ::epoll_ctl(events(), EPOLL_CTL_MOD, bell(), &event) == 0;
  errno = saved_errno;
  return ours;
}

bool ServiceLoop::ring() const {
  const int saved_errno = errno;
  // A pipe that nobody can read would raise SIGPIPE. A full one is readable already.
  const bool ours =
      is_of_bell(bell_) && is_of_bell(ringer_) && (::write(ringer_.get(), "r", 1) == 1 || errno == EAGAIN);
  errno = saved_errno;
  return ours;
}

void ServiceLoop::silence() const {
  std::array<char, 64> rung;
  while (::read(bell(), rung.data(), rung.size()) == static_cast<ssize_t>(rung.size())) {
  }
}

void ServiceLoop::close() {
  if (!may_be_proved()) {
    for (UniqueFd* const one : {&events_, &bell_, &ringer_}) static_cast<void>(one->release());
    return;
  }
  // Without the bell nothing proves that the set is ours.
  if (!is_ours()) static_cast<void>(events_.release());
  events_.reset();
  for (UniqueFd* const end : {&bell_, &ringer_}) {
    if (!is_of_bell(*end)) static_cast<void>(end->release());
    end->reset();
  }
}

}  // namespace ringsock::runtime
