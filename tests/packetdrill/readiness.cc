// poll() and epoll.
#include <algorithm>

#include "tests/packetdrill/adapter.h"

namespace ringsock::packetdrill {
namespace {

using engine::tcp::State;

}  // namespace

bool can_read(Socket& s) {
  return s.tcp.readable() >= s.options.receive_low || s.tcp.at_end() || s.error() != 0 || s.read_closed || is_over(s);
}

namespace {

short poll_bits(Socket& s) {
  if (s.listening) return s.accepts.empty() ? 0 : POLLIN | POLLRDNORM;
  if (!s.started) return POLLOUT | POLLWRNORM | POLLHUP;
  int bits = s.notices.empty() ? 0 : POLLERR;
  const State state = s.tcp.state();
  const bool over = is_over(s);
  const bool peer_done = over || s.read_closed || state == State::close_wait || state == State::last_ack ||
                         state == State::closing || state == State::time_wait;
  if (over || (s.write_closed && peer_done)) bits |= POLLHUP;
  if (peer_done) bits |= POLLIN | POLLRDNORM | POLLRDHUP;
  if (s.tcp.readable() >= s.options.receive_low) bits |= POLLIN | POLLRDNORM;
  if (s.error() != 0) bits |= POLLERR;
  if (over || s.write_closed || (!s.connecting && s.connected && s.tcp.is_writable())) bits |= POLLOUT | POLLWRNORM;
  if (s.connected && s.tcp.has_urgent_byte()) bits |= POLLPRI;
  return static_cast<short>(bits);
}

int look(Call& call, pollfd* fds, nfds_t count) {
  int ready = 0;
  for (nfds_t i = 0; i < count; ++i) {
    fds[i].revents = 0;
    if (fds[i].fd < 0) continue;
    const SocketPtr s = call.socket(fds[i].fd);
    const int bits = s ? poll_bits(*s) & (fds[i].events | POLLERR | POLLHUP) : POLLNVAL;
    fds[i].revents = static_cast<short>(bits);
    if (bits != 0) ++ready;
  }
  return ready;
}

Nanos poll_deadline(const Call& call, int timeout_ms) {
  return timeout_ms < 0 ? Nanos::max() : call.all.host.now() + std::chrono::milliseconds(timeout_ms);
}

}  // namespace

int call_poll(void* data, pollfd* fds, nfds_t count, int timeout_ms) {
  Call call(data);
  const std::function<bool()> ready = [&] { return look(call, fds, count) != 0; };
  if (timeout_ms != 0) call.all.host.wait(call.lock, ready, poll_deadline(call, timeout_ms));
  return look(call, fds, count);
}

int call_epoll_create(void* data, int size) {
  Call call(data);
  if (size <= 0) return fail(EINVAL);
  call.all.epolls[call.all.next] = {};
  return call.all.next++;
}

int call_epoll_ctl(void* data, int set_fd, int operation, int fd, epoll_event* event) {
  Call call(data);
  const auto set = call.all.epolls.find(set_fd);
  if (set == call.all.epolls.end() || !call.socket(fd)) return fail(EBADF);
  const bool known = set->second.wanted.count(fd) != 0;
  if (operation == EPOLL_CTL_ADD && known) return fail(EEXIST);
  if (operation != EPOLL_CTL_ADD && !known) return fail(ENOENT);
  set->second.seen.erase(fd);
  if (operation == EPOLL_CTL_DEL) return set->second.wanted.erase(fd), 0;
  if (event == nullptr) return fail(EFAULT);
  set->second.wanted[fd] = *event;
  return 0;
}

namespace {

/// Returns the bits that a descriptor of the set would report now.
std::uint32_t pending(Call& call, EpollSet& set, int fd, const epoll_event& wanted) {
  const SocketPtr s = call.socket(fd);
  if (!s || (wanted.events & ~(EPOLLET | EPOLLONESHOT)) == 0) return 0;
  const auto bits = static_cast<std::uint32_t>(poll_bits(*s)) & (wanted.events | EPOLLERR | EPOLLHUP);
  const auto seen = set.seen.find(fd);
  const bool old = (wanted.events & EPOLLET) != 0 && seen != set.seen.end() && seen->second == s->arrivals;
  return old ? 0 : bits;
}

}  // namespace

int call_epoll_wait(void* data, int set_fd, epoll_event* out, int most, int timeout_ms) {
  Call call(data);
  const auto found = call.all.epolls.find(set_fd);
  if (found == call.all.epolls.end()) return fail(EBADF);
  if (most <= 0 || out == nullptr) return fail(EINVAL);
  EpollSet& set = found->second;
  const std::function<bool()> ready = [&] {
    return std::any_of(set.wanted.begin(), set.wanted.end(),
                       [&](const auto& one) { return pending(call, set, one.first, one.second) != 0; });
  };
  if (timeout_ms != 0) call.all.host.wait(call.lock, ready, poll_deadline(call, timeout_ms));
  int count = 0;
  for (auto& [fd, wanted] : set.wanted) {
    const std::uint32_t bits = count < most ? pending(call, set, fd, wanted) : 0;
    if (bits == 0) continue;
    out[count] = wanted;
    out[count++].events = bits;
    set.seen[fd] = call.socket(fd)->arrivals;
    if ((wanted.events & EPOLLONESHOT) != 0) wanted.events &= EPOLLET | EPOLLONESHOT;
  }
  return count;
}

}  // namespace ringsock::packetdrill
