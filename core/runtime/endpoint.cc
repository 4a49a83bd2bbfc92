#include "core/runtime/endpoint.h"

#include <cerrno>
#include <mutex>
#include <new>

#include "core/runtime/fork_registry.h"

namespace ringsock::runtime {

namespace {
Error unsupported() { return {EOPNOTSUPP, "endpoint: operation"}; }
}  // namespace

Ref Watch::owner() noexcept { return {}; }

Endpoint::Endpoint(Carries carries) : carries_(carries) {}
Endpoint::~Endpoint() = default;

Status Setup::bind(const sockaddr*, socklen_t) { return unsupported(); }
Status Setup::listen(int) { return unsupported(); }
Result<int> Setup::accept(SocketAddress&, int) { return unsupported(); }
Status Setup::connect(const sockaddr*, socklen_t) { return unsupported(); }
Status Setup::shutdown(int) { return unsupported(); }
Result<SocketAddress> Setup::local_name() { return unsupported(); }
Result<SocketAddress> Setup::peer_name() { return unsupported(); }
Status Setup::set_option(int, int, const void*, socklen_t) { return unsupported(); }
Status Setup::get_option(int, int, void*, socklen_t*) { return unsupported(); }
Result<ssize_t> Transfer::receive(msghdr&, int) { return unsupported(); }
Result<ssize_t> Transfer::send(const msghdr&, int) { return unsupported(); }
Result<int> Transfer::unread_bytes() { return unsupported(); }
Result<int> Transfer::unsent_bytes() { return unsupported(); }
Result<int> Transfer::ask(unsigned long /*request*/) { return unsupported(); }

Result<ssize_t> Transfer::receive_bytes(void* data, std::size_t length, int flags) {
  iovec piece{data, length};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  return receive(message, flags);
}

Result<ssize_t> Transfer::receive_by(BytesTaker& taker, std::span<std::byte> room, int flags) {
  const auto seen = receive_bytes(room.data(), room.size(), flags | MSG_PEEK);
  if (!seen || *seen == 0) return seen;
  const std::size_t taken = taker.take(room.first(static_cast<std::size_t>(*seen)));
  if (taken == 0) return Error{EAGAIN, "receive: not taken"};
  for (std::size_t done = 0; done < taken;) {
    const auto received = receive_bytes(room.data(), taken - done, flags | MSG_DONTWAIT);
    if (!received || *received == 0) break;
    done += static_cast<std::size_t>(*received);
  }
  return static_cast<ssize_t>(taken);
}

Result<ssize_t> Transfer::send_bytes(const void* data, std::size_t length, int flags) {
  iovec piece{const_cast<void*>(data), length};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  return send(message, flags);
}

bool Endpoint::add_watch(Watch& watch) {
  const std::lock_guard guard(watches_lock_);
  if (is_closed()) return false;
  watches_.push_back(watch);
  has_watches_.store(true, std::memory_order_relaxed);
  return true;
}

void Endpoint::remove_watch(Watch& watch) {
  const std::lock_guard guard(watches_lock_);
  watch.ListNode<Endpoint>::unlink();
  has_watches_.store(!watches_.empty(), std::memory_order_relaxed);
}

void Endpoint::notify_watchers_slow(std::uint32_t changed) {
  const std::lock_guard guard(watches_lock_);
  watches_.for_each([changed](Watch& watch) {
    if ((watch.interest_ & changed) != 0) watch.endpoint_changed();
  });
}

void Endpoint::notify_watchers_of_one(std::uint32_t changed) {
  if (!is_watched()) return;
  {
    const std::lock_guard guard(watches_lock_);
    watches_.for_each([changed](Watch& watch) {
      if (!watch.is_taker() && (watch.interest_ & changed) != 0) watch.endpoint_changed();
    });
  }
  notify_a_taker();
}

void Endpoint::notify_a_taker() {
  if (!is_watched()) return;
  const std::lock_guard guard(watches_lock_);
  Watch* woken = nullptr;
  watches_.for_each([&woken](Watch& watch) {
    if (woken != nullptr || !watch.is_taker()) return;
    watch.endpoint_changed();
    if (watch.is_asleep()) woken = &watch;
  });
  if (woken == nullptr) return;
  woken->ListNode<Endpoint>::unlink();
  watches_.push_back(*woken);
}

void Endpoint::member_closed(Endpoint&) noexcept {}
void Endpoint::member_left_to_kernel(Endpoint&, int) noexcept {}

void Endpoint::retire() noexcept {
  {
    const std::lock_guard guard(watches_lock_);
    if (is_closed_.exchange(true, std::memory_order_acq_rel)) return;
  }
  closed();
  notify_watchers_slow(~0U);
  while (const Ref set = first_owner()) set->member_closed(*this);
}

bool Calls::keep(Endpoint& endpoint, int fd) noexcept {
  if (!endpoint.references.has_calls() || !endpoint.owns_descriptor(fd)) return false;
  while (const Ref set = endpoint.first_owner()) set->member_closed(endpoint);  // its epoll file has the old number
  endpoint.give_up_descriptor();
  if (endpoint.owns_descriptor(fd) || !endpoint.references.retire_behind_calls()) return false;
  endpoint.notify_watchers_slow(~0U);  // sleepers have the old number
  return true;
}

void Calls::end(Endpoint& endpoint) noexcept {
  switch (endpoint.references.end_call()) {
    case References::CallEnd::others_stay: return;
    case References::CallEnd::was_last_reference: delete &endpoint; return;
    case References::CallEnd::retires: break;
  }
  const int saved_errno = errno;
  endpoint.retire();
  endpoint.drop_ref();
  errno = saved_errno;
}

void Endpoint::add_fork_locks(ForkLocks& locks) { locks.add_inner(watches_lock_); }

void Endpoint::after_fork(ForkSide side) noexcept {
  if (side == ForkSide::unprepared_child) new (&watches_lock_) Mutex;
  if (side != ForkSide::parent) {
    sleeping_calls_.store(0);
    references.forget_calls();
  }
  if (side != ForkSide::child) return;
  watches_.for_each([](Watch& watch) {
    if (watch.belongs_to_thread()) watch.ListNode<Endpoint>::unlink();
  });
  has_watches_.store(!watches_.empty(), std::memory_order_relaxed);
}

void Endpoint::leave_to_kernel(int fd) noexcept {
  has_left_to_kernel_.store(true, std::memory_order_release);
  while (const Ref set = first_owner()) set->member_left_to_kernel(*this, fd);
  notify_watchers_slow(~0U);
}

/// Returns an epoll set that watches this endpoint, or an empty reference.
Ref Endpoint::first_owner() {
  Ref set;
  const std::lock_guard guard(watches_lock_);
  watches_.for_each([&set](Watch& watch) {
    if (!set) set = watch.owner();
  });
  return set;
}

}  // namespace ringsock::runtime
