#include "libvmacompat/tcp/kernel_connection.h"

#include <linux/filter.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <span>

#include "libvmacompat/process/kernel_options.h"

namespace ringsock::vma {

using engine::tcp::Established;

namespace {

constexpr int kEstablished = 1;  // TCP_ESTABLISHED of the kernel's table of states
constexpr int kFrozen = 1;
constexpr int kThawed = 0;  // with a window probe
constexpr int kThawedSilently = -1;
constexpr int kReceiveQueue = 1;
constexpr int kSendQueue = 2;
// Kinds of options (IANA, "TCP Option Kind Numbers"), as TCP_REPAIR_OPTIONS takes them.
constexpr std::uint32_t kMss = 2;
constexpr std::uint32_t kWindowScale = 3;
constexpr std::uint32_t kSackPermitted = 4;
constexpr std::uint32_t kTimestamps = 8;
/// The largest piece for a queue: the kernel keeps each piece in one buffer.
constexpr std::size_t kPieceBytes = std::size_t{32} << 10;

template <class Value>
Status set(int fd, int name, const Value& value, const char* where) {
  return ::setsockopt(fd, IPPROTO_TCP, name, &value, sizeof value) == 0 ? ok() : Status(Error::last(where));
}

/// Kernels give as much of a structure as they know; the rest stays zero.
template <class Value>
Result<Value> get(int fd, int name, const char* where) {
  Value value{};
  socklen_t bytes = sizeof value;
  if (::getsockopt(fd, IPPROTO_TCP, name, &value, &bytes) != 0) return Error::last(where);
  return value;
}

/// Has the kernel drop every further segment of the connection: the peer repeats it. Those that come now have passed
/// the ring's rule before it was there; acknowledged behind the back of who reads the state, they would be lost.
Status shut_out_segments(int fd) {
  if (has_filter(fd)) return Error{EOPNOTSUPP, "tcp: the application's filter"};
  sock_filter drop[] = {BPF_STMT(BPF_RET | BPF_K, 0)};
  const sock_fprog program{std::size(drop), drop};
  if (::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0) return ok();
  return Error::last("tcp: SO_ATTACH_FILTER");
}

void let_segments_in(int fd) {
  const int unused = 0;
  ::setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof unused);
}

Status freeze(int fd) { return set(fd, TCP_REPAIR, kFrozen, "tcp: TCP_REPAIR"); }

Status choose_queue(int fd, int queue) { return set(fd, TCP_REPAIR_QUEUE, queue, "tcp: TCP_REPAIR_QUEUE"); }

Result<std::uint32_t> sequence_of(int fd, int queue) {
  if (Status chosen = choose_queue(fd, queue); !chosen) return chosen.error();
  return get<std::uint32_t>(fd, TCP_QUEUE_SEQ, "tcp: TCP_QUEUE_SEQ");
}

Status set_sequence(int fd, int queue, std::uint32_t sequence) {
  if (Status chosen = choose_queue(fd, queue); !chosen) return chosen;
  return set(fd, TCP_QUEUE_SEQ, sequence, "tcp: TCP_QUEUE_SEQ");
}

Result<std::size_t> bytes_by(int fd, unsigned long request) {
  int bytes = 0;
  if (::ioctl(fd, request, &bytes) != 0) return Error::last("tcp: bytes of a queue");
  return static_cast<std::size_t>(std::max(bytes, 0));
}

/// Copies the chosen queue without taking anything from it.
Status copy_queue(int fd, std::size_t bytes, std::vector<std::byte>& out) {
  out.resize(bytes);
  if (bytes == 0) return ok();
  const ssize_t got = ::recv(fd, out.data(), bytes, MSG_PEEK | MSG_DONTWAIT);
  if (got < 0) return Error::last("tcp: recv of a queue");
  // Urgent data hides what is behind it.
  return static_cast<std::size_t>(got) == bytes ? ok() : Status(Error{EOPNOTSUPP, "tcp: part of a queue"});
}

Status read_send_queue(int fd, Established& out) {
  const auto end = sequence_of(fd, kSendQueue);
  const auto all = bytes_by(fd, SIOCOUTQ), unsent = bytes_by(fd, SIOCOUTQNSD);
  if (!end) return end.error();
  if (!all) return all.error();
  if (!unsent) return unsent.error();
  out.snd_nxt = *end - static_cast<std::uint32_t>(*unsent);
  out.snd_una = *end - static_cast<std::uint32_t>(*all);
  return copy_queue(fd, *all, out.send_queue);
}

Status read_receive_queue(int fd, Established& out) {
  const auto end = sequence_of(fd, kReceiveQueue);
  const auto bytes = bytes_by(fd, SIOCINQ);
  if (!end) return end.error();
  if (!bytes) return bytes.error();
  out.rcv_nxt = *end;
  return copy_queue(fd, *bytes, out.receive_queue);
}

Status read_windows(int fd, Established& out) {
  const auto window = get<tcp_repair_window>(fd, TCP_REPAIR_WINDOW, "tcp: TCP_REPAIR_WINDOW");
  if (!window) return window.error();
  out.snd_wl1 = window->snd_wl1;
  out.snd_wnd = window->snd_wnd;
  out.max_window = window->max_window;
  out.rcv_wnd = window->rcv_wnd;
  out.rcv_wup = window->rcv_wup;
  return ok();
}

Status read_options(int fd, const tcp_info& info, Established& out) {
  out.timestamps = (info.tcpi_options & TCPI_OPT_TIMESTAMPS) != 0;
  out.sack = (info.tcpi_options & TCPI_OPT_SACK) != 0;
  out.window_scaling = (info.tcpi_options & TCPI_OPT_WSCALE) != 0;
  out.snd_scale = info.tcpi_snd_wscale;
  out.rcv_scale = info.tcpi_rcv_wscale;
  // A frozen socket gives the peer's own number instead of the one in use.
  const auto mss = get<int>(fd, TCP_MAXSEG, "tcp: TCP_MAXSEG");
  if (!mss) return mss.error();
  out.mss = static_cast<std::uint16_t>(std::clamp(*mss, 1, 65535));
  const auto now = get<std::uint32_t>(fd, TCP_TIMESTAMP, "tcp: TCP_TIMESTAMP");
  if (!now) return now.error();
  // Since Linux 6.7 the lowest bit says whether the connection counts microseconds, so the number may be one too small.
  // A peer drops what is older than the last segment (RFC 7323, 5.3).
  out.timestamp_now = *now | 1;
  return ok();
}

Result<tcp_info> established_info(int fd) {
  const auto info = get<tcp_info>(fd, TCP_INFO, "tcp: TCP_INFO");
  if (!info) return info.error();
  if (info->tcpi_state != kEstablished) return Error{ENOTCONN, "tcp: state"};
  if ((info->tcpi_options & TCPI_OPT_SYN_DATA) != 0) return Error{EOPNOTSUPP, "tcp: fast open"};
  return *info;
}

Result<Established> read_frozen(int fd) {
  const auto info = established_info(fd);
  if (!info) return info.error();
  Established out;
  // The send queue last: a frozen socket goes on sending, by timers of its pacing for example, unless that queue is the
  // chosen one, and what left after the look would be unknown to whoever goes on.
  for (Status step :
       {read_receive_queue(fd, out), read_windows(fd, out), read_options(fd, *info, out), read_send_queue(fd, out)})
    if (!step) return step.error();
  // A FIN may have come since the first look, or a segment that was on its way when it was shut out.
  if (const auto again = established_info(fd); !again) return again.error();
  const auto waiting = bytes_by(fd, SIOCINQ);
  if (!waiting) return waiting.error();
  if (*waiting != out.receive_queue.size()) return Error{EAGAIN, "tcp: a segment came meanwhile"};
  return out;
}

/// Reads until nothing has changed meanwhile: segments are shut out, so once more is enough.
Result<Established> read_at_rest(int fd) {
  auto state = read_frozen(fd);
  return state || state.error().code != EAGAIN ? state : read_frozen(fd);
}

int buffer_option(int queue) { return queue == kSendQueue ? SO_SNDBUF : SO_RCVBUF; }
int forced_buffer_option(int queue) { return queue == kSendQueue ? SO_SNDBUFFORCE : SO_RCVBUFFORCE; }

/// Makes room for `bytes` in a queue. The size that the application has chosen, or the kernel, is kept if it is enough.
/// @return  whether the size was changed
bool make_room(int fd, int queue, std::size_t bytes) {
  int room = 0;
  socklen_t length = sizeof room;
  ::getsockopt(fd, SOL_SOCKET, buffer_option(queue), &room, &length);
  // The kernel counts memory: up to twice the bytes, and as much again while it works.
  const int needed = static_cast<int>(std::min<std::size_t>(4 * bytes, std::size_t{1} << 30));
  if (room >= needed) return false;
  const int half = needed / 2;  // the kernel doubles it
  return ::setsockopt(fd, SOL_SOCKET, forced_buffer_option(queue), &half, sizeof half) == 0;
}

/// Undoes what SO_RCVBUFFORCE and SO_SNDBUFFORCE do to autotuning. SO_BUF_LOCK is in kernels since 5.14.
void allow_autotuning(int fd, int locks) {
#ifdef SO_BUF_LOCK
  ::setsockopt(fd, SOL_SOCKET, SO_BUF_LOCK, &locks, sizeof locks);
#else
  (void)fd, (void)locks;
#endif
}

Status fill_queue(int fd, int queue, std::span<const std::byte> bytes) {
  if (bytes.empty()) return ok();
  if (Status chosen = choose_queue(fd, queue); !chosen) return chosen;
  const int locks = buffer_locks_of(fd);
  const bool changed = make_room(fd, queue, bytes.size());
  Status filled = ok();
  while (!bytes.empty() && filled) {
    const ssize_t taken = ::send(fd, bytes.data(), std::min(bytes.size(), kPieceBytes), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (taken <= 0)
      filled = taken == 0 || errno == EAGAIN ? Status(Error{ENOMEM, "tcp: room of a queue"})
                                             : Status(Error::last("tcp: send into a queue"));
    else
      bytes = bytes.subspan(static_cast<std::size_t>(taken));
  }
  if (changed) allow_autotuning(fd, locks);
  return filled;
}

/// Leaves the connection that the frozen socket has, without a word to the peer.
Status leave_connection(int fd) {
  const sockaddr nobody{AF_UNSPEC, {}};
  if (::connect(fd, &nobody, sizeof nobody) != 0) return Error::last("tcp: leave");
  // Linux notes ECONNABORTED for the application.
  int noted = 0;
  socklen_t length = sizeof noted;
  ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &noted, &length);
  return freeze(fd);
}

/// An accepted socket has no port any more, although getsockname(2) goes on to tell it. One that the application has
/// bound keeps its port, and cannot be bound again.
Status take_address(int fd, const SocketAddress& local) {
  if (::bind(fd, local.get(), local.length()) == 0) return ok();
  const Error why = Error::last("tcp: bind");
  const auto has = name_by(&::getsockname, fd, "tcp: getsockname");
  // Where the address was forgotten, connect(2) chooses it by the route.
  const bool keeps_port = why.code == EINVAL && has && has->port() == local.port();
  return keeps_port ? ok() : Status(why);
}

Status set_options(int fd, const Established& state) {
  std::array<tcp_repair_opt, 4> options{};
  std::size_t count = 0;
  options[count++] = {kMss, state.mss};
  if (state.window_scaling)
    options[count++] = {kWindowScale, state.snd_scale | static_cast<std::uint32_t>(state.rcv_scale) << 16};
  if (state.sack) options[count++] = {kSackPermitted, 0};
  if (state.timestamps) options[count++] = {kTimestamps, 0};
  const auto bytes = static_cast<socklen_t>(count * sizeof options[0]);
  if (::setsockopt(fd, IPPROTO_TCP, TCP_REPAIR_OPTIONS, options.data(), bytes) != 0)
    return Error::last("tcp: TCP_REPAIR_OPTIONS");
  // Even: the connection goes on in milliseconds.
  const std::uint32_t even = (state.timestamp_now + 1) & ~1U;
  return state.timestamps ? set(fd, TCP_TIMESTAMP, even, "tcp: TCP_TIMESTAMP") : ok();
}

Status set_windows(int fd, const Established& state) {
  const tcp_repair_window window{state.snd_wl1, state.snd_wnd, state.max_window, state.rcv_wnd, state.rcv_wup};
  return set(fd, TCP_REPAIR_WINDOW, window, "tcp: TCP_REPAIR_WINDOW");
}

std::size_t sent_bytes(const Established& state) { return state.snd_nxt - state.snd_una; }

Status connect_silently(int fd, const SocketAddress& local, const SocketAddress& peer, const Established& state) {
  if (Status bound = take_address(fd, local); !bound) return bound;
  const auto first_unread = state.rcv_nxt - static_cast<std::uint32_t>(state.receive_queue.size());
  if (Status sequence = set_sequence(fd, kSendQueue, state.snd_una); !sequence) return sequence;
  if (Status sequence = set_sequence(fd, kReceiveQueue, first_unread); !sequence) return sequence;
  if (::connect(fd, peer.get(), peer.length()) != 0) return Error::last("tcp: connect");
  return set_options(fd, state);
}

Status build(int fd, const SocketAddress& local, const SocketAddress& peer, const Established& state) {
  if (Status connected = connect_silently(fd, local, peer, state); !connected) return connected;
  const std::span sent = std::span(state.send_queue).first(std::min(sent_bytes(state), state.send_queue.size()));
  if (Status filled = fill_queue(fd, kReceiveQueue, state.receive_queue); !filled) return filled;
  if (Status filled = fill_queue(fd, kSendQueue, sent); !filled) return filled;
  return set_windows(fd, state);
}

/// The state that a placeholder has: of the right place, with empty queues.
Established without_bytes(Established state) {
  state.send_queue.clear();
  state.receive_queue.clear();
  state.snd_una = state.snd_nxt;
  return state;
}

Status make_placeholder(int fd, const SocketAddress& local, const SocketAddress& peer, const Established& state) {
  if (Status left = leave_connection(fd); !left) return left;
  return build(fd, local, peer, without_bytes(state));
}

}  // namespace

Result<Established> take_out(int fd) {
  const auto local = name_by(&::getsockname, fd, "tcp: getsockname");
  const auto peer = name_by(&::getpeername, fd, "tcp: getpeername");
  if (!local || !peer) return Error{ENOTCONN, "tcp: names"};
  if (const auto info = established_info(fd); !info) return info.error();
  if (Status shut = shut_out_segments(fd); !shut) return shut.error();
  Status frozen = freeze(fd);
  auto state = frozen ? read_at_rest(fd) : Result<Established>(frozen.error());
  if (!state) {
    if (frozen) (void)set(fd, TCP_REPAIR, kThawedSilently, "tcp: TCP_REPAIR");
    let_segments_in(fd);
    return state;
  }
  if (Status made = make_placeholder(fd, *local, *peer, *state); !made) return Error{ECONNABORTED, made.error().where};
  return state;
}

Status put_back(int fd, const SocketAddress& local, const SocketAddress& peer, const Established& state) {
  if (state.peer_closed) return Error{EOPNOTSUPP, "tcp: the peer has closed"};
  if (Status frozen = freeze(fd); !frozen) return frozen;
  if (Status left = leave_connection(fd); !left) return left;
  Status built = build(fd, local, peer, state);
  if (!built) (void)leave_connection(fd);
  let_segments_in(fd);
  return built;
}

Status go_on(int fd, const Established& state) {
  if (Status thawed = set(fd, TCP_REPAIR, kThawed, "tcp: TCP_REPAIR"); !thawed) return thawed;
  std::span rest = std::span(state.send_queue).subspan(std::min(sent_bytes(state), state.send_queue.size()));
  if (rest.empty()) return ok();
  const int locks = buffer_locks_of(fd);
  const bool changed = make_room(fd, kSendQueue, state.send_queue.size());
  const ssize_t taken = ::send(fd, rest.data(), rest.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  const Error error = Error::last("tcp: send of the rest");
  if (changed) allow_autotuning(fd, locks);
  if (taken < 0) return error;
  return static_cast<std::size_t>(taken) == rest.size() ? ok() : Status(Error{ENOBUFS, "tcp: room for the rest"});
}

}  // namespace ringsock::vma
