#include "core/poll/doorbells.h"

#include <sys/eventfd.h>

#include <cerrno>
#include <new>
#include <optional>
#include <utility>

#include "core/base/rare_calls.h"
#include "core/poll/epoll_file.h"

namespace ringsock::runtime {

namespace {

/// Counts a member of `endpoint` as a user of the doorbell, if it is a new one. Returns whether the doorbell was known
/// before; nothing when there is no memory for it.
template <class Known>
std::optional<bool> know_doorbell(Known& doorbells, int fd, Endpoint& endpoint, bool is_new) try {
  const auto [place, is_first] = doorbells.try_emplace(fd);
  place->second.owner = &endpoint;
  if (is_new) ++place->second.users;
  return !is_first;
} catch (const std::bad_alloc&) {
  return std::nullopt;
}

}  // namespace

Doorbells::Doorbells(UniqueFd file, UniqueFd bell) : file_(std::move(file)), bell_(std::move(bell)) {}

Result<Doorbells> Doorbells::make() {
  // A child may have a set that was made before a filter which forbids making one.
  for (const RareCall call : {RareCall::epoll_create1, RareCall::eventfd2, RareCall::epoll_ctl})
    if (is_known_forbidden(call)) return Error{EPERM, "epoll_create: seccomp"};
  UniqueFd file = out_of_the_way(UniqueFd(::epoll_create1(EPOLL_CLOEXEC)));
  UniqueFd bell = out_of_the_way(UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)));
  if (!file || !bell) return Error::last("epoll_create");
  const epoll_event rung{EPOLLIN | EPOLLET, {.fd = bell.get()}};
  if (Status added = control_epoll_file(file.get(), EPOLL_CTL_ADD, bell.get(), &rung); !added) return added.error();
  return Doorbells(std::move(file), std::move(bell));
}

Status Doorbells::renew() {
  auto made = make();
  if (made) {
    *this = *std::move(made);
    return ok();
  }
  file_.reset();
  bell_.reset();
  known_.clear();
  return made.error();
}

void Doorbells::ring_bell() const {
  const int saved_errno = errno;
  ::eventfd_write(bell_.get(), 1);
  errno = saved_errno;
}

bool Doorbells::add(int& fd, Endpoint& endpoint, bool is_new) {
  const std::optional<bool> known = know_doorbell(known_, fd, endpoint, is_new);
  if (!known) {
    fd = -1;
    return false;
  }
  // A kernel socket reports what it is ready for; a doorbell is only ever readable.
  const bool tells_more = endpoint.asks_kernel() && !endpoint.is_datagram();
  const std::uint32_t edges = EPOLLIN | EPOLLET | (tells_more ? EPOLLOUT | EPOLLRDHUP : 0U);
  const epoll_event event{edges, {.fd = fd}};
  // Even a known doorbell may be stale: the endpoint may have closed the descriptor and opened another with that
  // number.
  if (*known && !is_new && endpoint.rings_for_each_arrival()) return true;
  if (*known && control_epoll_file(file_.get(), EPOLL_CTL_MOD, fd, &event)) return true;
  const Status added = control_epoll_file(file_.get(), EPOLL_CTL_ADD, fd, &event);
  if (added) return true;
  // The doorbells of a nested set were added by add_nested(); EPOLL_CTL_MOD also reports one that is readable already.
  return added.error().code == EEXIST && control_epoll_file(file_.get(), EPOLL_CTL_MOD, fd, &event);
}

Status Doorbells::add_nested(int fd) const {
  const epoll_event event{EPOLLIN | EPOLLET, {.fd = fd}};
  return control_epoll_file(file_.get(), EPOLL_CTL_ADD, fd, &event);
}

bool Doorbells::leave(int fd, Endpoint& endpoint) {
  const auto known = known_.find(fd);
  if (known == known_.end()) return false;
  if (known->second.users > 1) {
    --known->second.users;
    return known->second.owner == &endpoint;
  }
  remove(fd);
  return false;
}

void Doorbells::ring_for(int fd, Endpoint& endpoint) {
  if (const auto known = known_.find(fd); known != known_.end()) known->second.owner = &endpoint;
}

void Doorbells::remove(int fd) {
  known_.erase(fd);
  static_cast<void>(control_epoll_file(file_.get(), EPOLL_CTL_DEL, fd, nullptr));
}

}  // namespace ringsock::runtime
