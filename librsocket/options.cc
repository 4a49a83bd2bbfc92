// setsockopt and getsockopt.
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstring>
#include <mutex>

#include "core/base/unique_fd.h"
#include "librsocket/idle_connection.h"
#include "librsocket/option_values.h"
#include "librsocket/rsocket_process.h"
#include "librsocket/stream_api.h"
#include "librsocket/stream_socket.h"

namespace ringsock::rs {

namespace {

/// The size of the tcp_info of Linux 6.
constexpr std::size_t kTcpInfoBytes = 248;
constexpr std::uint32_t kMinBuffer = 4096;
constexpr std::uint32_t kMaxBuffer = 1u << 30;
constexpr socklen_t kPathDataBytes = 72;  // struct ibv_path_data

/// @param told  what the socket says of its buffer, 0 where that is the size of the ring
Status write_buffer_size(void* value, socklen_t* length, int told, std::uint32_t ring) {
  return write_int(value, length, told != 0 ? told : static_cast<int>(ring));
}

/// Returns the stored value of SO_RCVBUF and SO_SNDBUF: twice the argument, as in Linux, within our limits, and even.
std::uint32_t buffer_size(int argument) {
  const auto doubled = 2 * static_cast<std::uint64_t>(std::max(argument, 0));
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(doubled, kMinBuffer, kMaxBuffer));
}

bool is_receive_buffer(int name) { return name == SO_RCVBUF || name == SO_RCVBUFFORCE; }

/// Returns what the kernel makes of a value of SO_SNDBUF or SO_RCVBUF, which wmem_max and rmem_max limit, or of
/// SO_SNDBUFFORCE or SO_RCVBUFFORCE. Any socket tells. Errors: EPERM.
Result<int> kernels_buffer_size(int name, int argument) {
  const UniqueFd asked = out_of_the_way(UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)));
  int size = 0;
  socklen_t length = sizeof size;
  if (asked && ::setsockopt(asked.get(), SOL_SOCKET, name, &argument, sizeof argument) != 0 && errno == EPERM)
    return Error{EPERM, "option: buffer"};
  const int told = is_receive_buffer(name) ? SO_RCVBUF : SO_SNDBUF;
  const bool is_told = asked && ::getsockopt(asked.get(), SOL_SOCKET, told, &size, &length) == 0;
  return is_told ? size : static_cast<int>(buffer_size(argument));
}

/// Sets TCP_INQ.
Status set_tells_unread(runtime::DescriptionValues& values, const void* value, socklen_t length) {
  const auto on = read_int(value, length);
  if (!on) return on.error();
  if (*on != 0 && *on != 1) return Error{EINVAL, "TCP_INQ"};
  values.set(runtime::DescriptionValues::tells_unread, *on);
  return ok();
}

QueueSettings settings_from(const config::RsocketConfig& config) {
  QueueSettings settings;
  settings.send_queue = config.sqsize_default;
  settings.receive_queue = config.rqsize_default;
  settings.inline_bytes = config.inline_default;
  settings.receive_ring = std::max(2u, config.mem_default + config.mem_default % 2);
  settings.send_ring = config.wmem_default;
  settings.iomap_entries = wire::decode_iomap_size(wire::encode_iomap_size(config.iomap_size));
  return settings;
}

}  // namespace

StreamOptions::StreamOptions(StreamSocket& socket, StreamCore& core, const config::RsocketConfig& config)
    : StreamPart(socket, core), integers_(core.endpoint.values), queues_(settings_from(config)) {}

void StreamOptions::inherit(const StreamOptions& listener) {
  queues_ = listener.queues_;
  told_send_buffer_ = listener.told_send_buffer_;
  told_receive_buffer_ = listener.told_receive_buffer_;
  integers_ = listener.integers_;
  for (const auto value : {runtime::DescriptionValues::linger, runtime::DescriptionValues::tells_unread})
    core_.endpoint.values.set(value, listener.core_.endpoint.values.get(value));
}

std::uint8_t StreamOptions::type_of_service() const {
  const int by_ipv6 = core_.domain == AF_INET6 ? integers_.get(IPPROTO_IPV6, IPV6_TCLASS) : 0;
  return static_cast<std::uint8_t>(by_ipv6 > 0 ? by_ipv6 : integers_.get(IPPROTO_IP, IP_TOS));
}

// -- set

Status StreamOptions::set(int level, int name, const void* value, socklen_t length) {
  if (level == kSolRdma) return set_rdma_level(name, value, length);
  if (level == SOL_SOCKET) {
    bool handled = false;
    Status done = set_socket_level(name, value, length, handled);
    if (handled) return done;
  }
  if (level == IPPROTO_TCP && name == TCP_MAXSEG) {
    auto size = read_int(value, length);
    return size ? ok() : Status(size.error());
  }
  if (level == IPPROTO_TCP && name == TCP_INQ) return set_tells_unread(core_.endpoint.values, value, length);
  if (level == IPPROTO_TCP && name == TCP_CONGESTION) {
    // Accepted without effect: RDMA has no choice of algorithm here.
    return value != nullptr && length > 0 ? ok() : Status(Error{EINVAL, "TCP_CONGESTION"});
  }
  return set_integer(level, name, value, length);
}

Status StreamOptions::set_integer(int level, int name, const void* value, socklen_t length) {
  const auto row = find_int_option(level, name);
  if (!row) return Error{ENOPROTOOPT, "rsetsockopt"};
  Result<int> number = 0;
  if (level == IPPROTO_IP && length >= 1 && length < sizeof(int) && value != nullptr) {
    number = static_cast<int>(*static_cast<const unsigned char*>(value));  // ip(7) also accepts a byte
  } else {
    number = read_int(value, length);
  }
  if (!number) return number.error();
  const IntOption& option = int_option(*row);
  if (*number < option.minimum || *number > option.maximum) return Error{EINVAL, "rsetsockopt: value"};
  std::unique_lock guard(core_.setup_lock);
  if (level == IPPROTO_IPV6 && name == IPV6_V6ONLY && core_.state() != State::initial)
    return Error{EINVAL, "IPV6_V6ONLY"};
  integers_.set(*row, option.is_flag ? *number != 0 : *number);
  const auto former = option_changed(level, name);
  guard.unlock();
  if (former) former->stop();
  return ok();
}

Status StreamOptions::set_socket_level(int name, const void* value, socklen_t length, bool& handled) {
  handled = true;
  switch (as_first_number(name)) {
    case SO_RCVTIMEO:
    case SO_SNDTIMEO: {
      auto timeout = read_timeout(value, length);
      if (!timeout) return timeout.error();
      as_first_number(name) == SO_RCVTIMEO ? core_.endpoint.set_receive_timeout(*timeout)
                                           : core_.endpoint.set_send_timeout(*timeout);
      return ok();
    }
    case SO_LINGER: return set_linger(value, length);
    case SO_VMA_USER_DATA: {
      StreamApi* const api = socket_.transfer().make_api();
      return api != nullptr ? api->events().user_data.set_option(value, length) : Error{ENOMEM, "SO_VMA_USER_DATA"};
    }
    case SO_VMA_RING_ALLOC_LOGIC: {
      StreamApi* const api = socket_.transfer().make_api();
      if (api == nullptr) return Error{ENOMEM, "SO_VMA_RING_ALLOC_LOGIC"};
      return api->events().ring_wish.set_option(value, length);
    }
    case SO_SNDBUF:
    case SO_SNDBUFFORCE:
    case SO_RCVBUF:
    case SO_RCVBUFFORCE: return set_buffer(name, value, length);
    case SO_TYPE:
    case SO_DOMAIN:
    case SO_PROTOCOL:
    case SO_ACCEPTCONN:
    case SO_ERROR: return Error{ENOPROTOOPT, "rsetsockopt: read only"};
    default: handled = false; return ok();
  }
}

Status StreamOptions::set_linger(const void* value, socklen_t length) {
  struct linger setting {};
  if (value == nullptr) return Error{EFAULT, "SO_LINGER"};
  if (length < sizeof setting) return Error{EINVAL, "SO_LINGER"};
  std::memcpy(&setting, value, sizeof setting);
  const std::int64_t seconds = std::clamp(setting.l_linger, 0, 32767);
  core_.endpoint.values.set(runtime::DescriptionValues::linger, seconds | (setting.l_onoff != 0 ? kLingers : 0));
  return ok();
}

Status StreamOptions::set_buffer(int name, const void* value, socklen_t length) {
  auto size = read_int(value, length);
  if (!size) return size.error();
  std::lock_guard guard(core_.setup_lock);
  const bool is_like_kernel = queues_.receive_overflow != 0;
  const bool is_receive = is_receive_buffer(name);
  if (is_like_kernel) {
    const auto told = kernels_buffer_size(name, *size);
    if (!told) return told.error();
    (is_receive ? told_receive_buffer_ : told_send_buffer_) = *told;
  }
  // Existing buffers keep their size, as in rdma-core; Linux does not promise more.
  if (core_.state() == State::connecting || core_.is_connected()) return ok();
  const std::uint32_t bytes = buffer_size(*size);
  (is_receive ? queues_.receive_ring : queues_.send_ring) = bytes;
  std::uint32_t& overflow = is_receive ? queues_.receive_overflow : queues_.send_overflow;
  if (overflow != 0) overflow = std::min(bytes, kOverflowBytes);
  return ok();
}

Status StreamOptions::set_rdma_level(int name, const void* value, socklen_t length) {
  std::lock_guard guard(core_.setup_lock);
  if (core_.state() == State::connecting || core_.is_connected()) return Error{EINVAL, "rsetsockopt: connected"};
  if (name == kRdmaRoute) return set_route(value, length);
  const auto number = read_int(value, length);
  if (!number) return number.error();
  if (*number < 0) return Error{EINVAL, "rsetsockopt: negative"};
  const auto queue = static_cast<std::uint16_t>(std::clamp(*number, kMinQueue, kMaxQueue));
  switch (name) {
    case kRdmaSqSize: queues_.send_queue = queue; return ok();
    case kRdmaRqSize: queues_.receive_queue = queue; return ok();
    case kRdmaInline: queues_.inline_bytes = static_cast<std::uint32_t>(*number); return ok();
    case kRdmaIomapSize:
      queues_.iomap_entries = wire::decode_iomap_size(wire::encode_iomap_size(static_cast<std::uint32_t>(*number)));
      return ok();
    default: return Error{ENOPROTOOPT, "rsetsockopt"};
  }
}

Status StreamOptions::set_route(const void* value, socklen_t length) {
  if (value == nullptr || length < kPathDataBytes || length % kPathDataBytes != 0) return Error{EINVAL, "RDMA_ROUTE"};
  const auto* bytes = static_cast<const std::byte*>(value);
  route_.assign(bytes, bytes + length);
  return ok();
}

// -- get

Status StreamOptions::get(int level, int name, void* value, socklen_t* length) {
  if (length == nullptr || (value == nullptr && *length != 0)) return Error{EFAULT, "rgetsockopt"};
  if (level == kSolRdma) return get_rdma_level(name, value, length);
  bool handled = false;
  if (level == SOL_SOCKET) {
    Status done = get_socket_level(name, value, length, handled);
    if (handled) return done;
  }
  if (level == IPPROTO_TCP) {
    Status done = get_tcp_level(name, value, length, handled);
    if (handled) return done;
  }
  const auto row = find_int_option(level, name);
  if (!row) return Error{ENOPROTOOPT, "rgetsockopt"};
  return write_int(value, length, integers_.get(*row));
}

Status StreamOptions::get_socket_level(int name, void* value, socklen_t* length, bool& handled) {
  handled = true;
  switch (as_first_number(name)) {
    case SO_ERROR: return write_int(value, length, socket_.progress().look_for_error());
    case SO_TYPE: return write_int(value, length, SOCK_STREAM);
    case SO_DOMAIN: return write_int(value, length, core_.domain);
    case SO_PROTOCOL: return write_int(value, length, IPPROTO_TCP);
    case SO_ACCEPTCONN: return write_int(value, length, core_.state() == State::listening);
    case SO_RCVTIMEO: return write_timeout(value, length, core_.endpoint.receive_timeout());
    case SO_SNDTIMEO: return write_timeout(value, length, core_.endpoint.send_timeout());
    case SO_SNDBUF: return write_buffer_size(value, length, told_send_buffer_, queues_.send_ring);
    case SO_RCVBUF: return write_buffer_size(value, length, told_receive_buffer_, queues_.receive_ring);
    case SO_LINGER: {
      const struct linger setting { lingers(), linger_seconds() };
      return write_value(value, length, &setting, sizeof setting);
    }
    case SO_VMA_USER_DATA: {
      StreamApi* const api = core_.api();
      const vma::UserData none;
      return (api != nullptr ? api->events().user_data : none).get_option(value, length, core_.fd);
    }
    default: handled = false; return ok();
  }
}

Status StreamOptions::get_tcp_level(int name, void* value, socklen_t* length, bool& handled) {
  handled = true;
  switch (name) {
    case TCP_MAXSEG: return write_int(value, length, segment_bytes());
    case TCP_INFO: return get_tcp_info(value, length);
    case TCP_INQ:
      return write_int(value, length,
                       static_cast<int>(core_.endpoint.values.get(runtime::DescriptionValues::tells_unread)));
    case TCP_CONGESTION: {
      char algorithm[16] = "rdma";
      return write_value(value, length, algorithm, sizeof algorithm);
    }
    default: handled = false; return ok();
  }
}

Status StreamOptions::get_rdma_level(int name, void* value, socklen_t* length) {
  std::lock_guard guard(core_.setup_lock);
  const QueueSettings& settings = core_.connection ? core_.connection->settings() : queues_;
  switch (name) {
    case kRdmaSqSize: return write_int(value, length, settings.send_queue);
    case kRdmaRqSize: return write_int(value, length, settings.receive_queue);
    case kRdmaInline: return write_int(value, length, static_cast<int>(settings.inline_bytes));
    case kRdmaIomapSize: return write_int(value, length, static_cast<int>(settings.iomap_entries));
    case kRdmaRoute: return write_route(value, length);
    default: return Error{ENOPROTOOPT, "rgetsockopt"};
  }
}

/// Writes as many whole records as fit: those that were set, otherwise those that were resolved.
Status StreamOptions::write_route(void* value, socklen_t* length) const {
  if (*length < kPathDataBytes) return Error{EINVAL, "RDMA_ROUTE"};
  const std::vector<std::byte> route = route_.empty() && core_.id ? core_.id->route() : route_;
  socklen_t room = *length / kPathDataBytes * kPathDataBytes;
  Status written = write_value(value, &room, route.data(), route.size());
  *length = room;
  return written;
}

void StreamOptions::describe_connection(tcp_info& info) {
  socket_.progress().look_for_reset();
  const bool peer_done = core_.connection->ends().has_peer_ended() || is_end_waiting(core_, socket_.inheritance());
  const bool we_done = core_.write_shut.load(std::memory_order_acquire);
  info.tcpi_state = TCP_ESTABLISHED;
  if (peer_done) info.tcpi_state = TCP_CLOSE_WAIT;
  if (we_done) info.tcpi_state = peer_done ? TCP_CLOSE : TCP_FIN_WAIT2;
  if (core_.connection->ends().failure() != 0 || core_.sent_into_the_void.load(std::memory_order_acquire))
    info.tcpi_state = TCP_CLOSE;
  info.tcpi_snd_cwnd = core_.connection->settings().send_queue;
  info.tcpi_snd_mss = info.tcpi_rcv_mss = static_cast<std::uint32_t>(segment_bytes());
  info.tcpi_rcv_space = core_.connection->settings().receive_ring;
}

Status StreamOptions::get_tcp_info(void* value, socklen_t* length) {
  // libc's tcp_info ends before the kernel's, of which programs may know more: those members are 0.
  struct {
    tcp_info known;
    std::array<std::byte, kTcpInfoBytes - sizeof(tcp_info)> newer;
  } all{};
  tcp_info& info = all.known;
  switch (core_.state()) {
    case State::listening: info.tcpi_state = TCP_LISTEN; break;
    case State::connecting: info.tcpi_state = TCP_SYN_SENT; break;
    case State::initial:
    case State::bound:
    case State::failed: info.tcpi_state = TCP_CLOSE; break;
    case State::connected: describe_connection(info); break;
  }
  return write_value(value, length, &all, sizeof all);
}

/// As in the kernel, a negative mark is the highest and 0 the lowest.
void StreamOptions::update_low_mark() {
  const std::size_t row = *find_int_option(SOL_SOCKET, SO_RCVLOWAT);
  const int asked = integers_.get(row);
  const int mark = asked < 0 ? INT_MAX : std::max(asked, 1);
  integers_.set(row, mark);
  core_.endpoint.set_receive_low_mark(static_cast<std::uint32_t>(mark));
  core_.endpoint.note_activity(EPOLLIN);
  core_.endpoint.notify_watchers();
}

std::shared_ptr<Keepalive> StreamOptions::option_changed(int level, int name) {
  const bool is_keepalive = (level == SOL_SOCKET && name == SO_KEEPALIVE) ||
                            (level == IPPROTO_TCP && (name == TCP_KEEPIDLE || name == TCP_KEEPINTVL));
  if (is_keepalive) return socket_.proofs_of_life().start_anew();
  if (level == SOL_SOCKET && name == SO_RCVLOWAT) update_low_mark();
  if (level == IPPROTO_TCP && name == TCP_CORK) socket_.transfer().corking().option_changed();
  if (level == IPPROTO_TCP && name == TCP_NODELAY && integer(level, name) != 0) socket_.transfer().corking().push();
  return nullptr;
}

}  // namespace ringsock::rs
