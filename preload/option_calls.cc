// The options of sockets. A connection on a ring answers for those that concern it (transports::is_ways_option()). For
// all others a kernel socket answers that is in the same state and has been given the same options.
#include <mellanox/vma_extra.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>

#include "core/base/posix_edge.h"
#include "core/base/socket_protocol.h"
#include "core/extra_api/user_data.h"
#include "core/transports/kept_options.h"
#include "core/transports/kernel_calls.h"
#include "preload/checked_transfer.h"
#include "preload/kernels_opinion.h"
#include "preload/socket_ways.h"

namespace ringsock::preload {
namespace {

using transports::is_ways_option;
using transports::KeptOptions;

/// The arguments of setsockopt(2).
struct Wish {
  int level;
  int name;
  const void* value;
  socklen_t length;

  [[nodiscard]] bool is(int its_level, int its_name) const { return level == its_level && name == its_name; }
  /// Returns the value of an option that is an int, or nothing where it is too short for one.
  [[nodiscard]] std::optional<int> number() const {
    int out = 0;
    if (length < sizeof out) return std::nullopt;
    std::memcpy(&out, value, sizeof out);
    return out;
  }
};

/// An unconnected TCP socket of the kernel that is to be connected to itself, so that it answers as a connected one.
/// Without a loopback interface it stays unconnected. Its close leaves nothing behind.
class SelfConnecting {
 public:
  SelfConnecting(int fd, const SocketAddress& peer) : fd_(fd) {
    const SocketAddress any = SocketAddress::wildcard(peer.family(), 0);
    sockaddr_storage bound{};
    socklen_t length = sizeof bound;
    auto* const address = reinterpret_cast<sockaddr*>(&bound);
    if (real.bind(fd, any.get(), any.length()) != 0 || real.getsockname(fd, address, &length) != 0) return;
    const auto name = SocketAddress::from(address, length);
    const std::uint16_t port = name ? name->port() : 0;
    self_ = SocketAddress::v4(INADDR_LOOPBACK, port);
    if (peer.family() == AF_INET6)
      self_ = peer.is_v4_mapped() ? self_.mapped() : SocketAddress::v6(in6addr_loopback, port);
  }
  void connect() {
    constexpr int kPatienceMilliseconds = 100;  // a packet filter may drop what it sends
    if (self_.is_unspecified()) return;
    transports::set_kernel_nonblocking(fd_, true);
    if (real.connect(fd_, self_.get(), self_.length()) != 0 && errno == EINPROGRESS) {
      pollfd connecting{fd_, POLLOUT, 0};
      real.poll(&connecting, 1, kPatienceMilliseconds);
    }
    transports::set_kernel_nonblocking(fd_, false);
    const linger at_once{1, 0};
    real.setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  }

 private:
  int fd_;
  SocketAddress self_;
};

/// A kernel socket in the state of one on a ring, with the options that this one was given.
class StandIn {
 public:
  explicit StandIn(Lookup& socket) : kernel_(domain_of(socket)) {
    const auto peer = socket->peer_name();
    const KeptOptions* const kept = socket->way() != nullptr ? &socket->way()->kept_options : nullptr;
    if (!peer) {
      if (kept != nullptr) kept->give_all_to(kernel_.fd());
      return;
    }
    SelfConnecting self(kernel_.fd(), *peer);
    if (kept != nullptr) kept->give_to(kernel_.fd(), KeptOptions::Time::before_connection);
    self.connect();
    if (kept != nullptr) kept->give_to(kernel_.fd(), KeptOptions::Time::in_connection);
  }

  Status set(const Wish& wish) const {
    if (real.setsockopt(kernel_.fd(), wish.level, wish.name, wish.value, wish.length) != 0)
      return Error::last("setsockopt");
    return ok();
  }
  Status get(int level, int name, void* value, socklen_t* length) const {
    if (real.getsockopt(kernel_.fd(), level, name, value, length) != 0) return Error::last("getsockopt");
    return ok();
  }
  /// Returns an option that is an int.
  [[nodiscard]] std::optional<int> number(int level, int name) const {
    int value = 0;
    socklen_t length = sizeof value;
    if (!get(level, name, &value, &length) || length != sizeof value) return std::nullopt;
    return value;
  }

 private:
  KernelsOpinion kernel_;
};

// -- options that rings cannot carry out

/// Returns whether an option would need support that rings lack: completions of sends.
bool is_promise(const Wish& wish) { return wish.is(SOL_SOCKET, SO_ZEROCOPY); }

/// Returns whether an option has recvmsg(2) tell times.
bool is_time_of_receives(const Wish& wish) {
  return wish.is(SOL_SOCKET, SO_TIMESTAMP) || wish.is(SOL_SOCKET, SO_TIMESTAMPNS) ||
         wish.is(SOL_SOCKET, SO_TIMESTAMP_NEW) || wish.is(SOL_SOCKET, SO_TIMESTAMPNS_NEW);
}

bool is_kernels_socket_option(const Wish& wish) {
  switch (wish.name) {
    case SO_PEEK_OFF:
    case SO_ATTACH_FILTER:
    case SO_ATTACH_BPF:
    case SO_ATTACH_REUSEPORT_CBPF:
    case SO_ATTACH_REUSEPORT_EBPF: return true;
    case SO_TIMESTAMPING:
    case SO_TIMESTAMPING_NEW: return wish.number().value_or(0) != 0;
    default: return is_time_of_receives(wish) && wish.number().value_or(0) != 0;
  }
}

/// Returns whether an option makes the socket the kernel's: an offset for MSG_PEEK, times of packets, what keeps
/// packets from the socket, and what chooses its listener or interface. A connection has chosen these already.
bool is_kernels_only(Lookup& socket, const Wish& wish) {
  constexpr int kTcpAoAddKey = 38;
  // Ethernet rings follow the interface of a socket.
  const bool has_no_interface = socket->as_chosen_socket() != nullptr && !is_kernel_unasked(*socket);
  if (wish.is(SOL_SOCKET, SO_BINDTODEVICE))
    return has_no_interface && wish.length != 0 && *static_cast<const char*>(wish.value) != 0;
  if (wish.is(SOL_SOCKET, SO_BINDTOIFINDEX)) return has_no_interface && wish.number().value_or(0) != 0;
  if (wish.level == SOL_SOCKET) return is_kernels_socket_option(wish);
  return wish.is(IPPROTO_TCP, TCP_MD5SIG) || wish.is(IPPROTO_TCP, TCP_MD5SIG_EXT) || wish.is(IPPROTO_TCP, TCP_REPAIR) ||
         wish.is(IPPROTO_TCP, kTcpAoAddKey);
}

/// Asks the kernel whether it has an algorithm for congestion control. Rings use none, and call that "rdma".
Status check_congestion(Lookup& socket, const void* name, socklen_t length) {
  constexpr std::string_view kOurs("rdma", sizeof "rdma");
  const auto told = std::min<std::size_t>(length, kOurs.size());
  if (!is_readable(name, told)) return Error{EFAULT, "setsockopt: TCP_CONGESTION"};
  const bool is_ours = told + 1 >= kOurs.size() && std::memcmp(name, kOurs.data(), told) == 0;
  if (is_ours) return ok();
  const KernelsOpinion kernel(domain_of(socket));
  const bool is_known = real.setsockopt(kernel.fd(), IPPROTO_TCP, TCP_CONGESTION, name, length) == 0;
  return is_known ? ok() : Status(Error::last("setsockopt: TCP_CONGESTION"));
}

// -- set

/// Returns whether the kernel is known to take the value as it is.
bool is_plain(const Wish& wish) {
  const auto number = wish.number();
  if (!number || wish.length != sizeof(int)) return false;
  if (wish.is(SOL_SOCKET, SO_PRIORITY)) return *number >= 0 && *number <= 6;
  // The lowest two bits are those of congestion notices.
  if (wish.is(IPPROTO_IP, IP_TOS)) return *number >= 0 && *number <= 255 && *number % 4 == 0;
  return false;
}

/// Returns whether the kernel may make another value of one that the way would take as it is.
bool is_adjusted(const Wish& wish) {
  constexpr int kSmall = 4096;
  const int number = wish.number().value_or(1);
  return wish.is(SOL_SOCKET, SO_RCVLOWAT) && (number < 1 || number > kSmall);
}

Status set_ways_option(Lookup& socket, const Wish& wish) {
  if (wish.is(IPPROTO_TCP, TCP_CONGESTION)) {
    if (Status known = check_congestion(socket, wish.value, wish.length); !known) return known;
  }
  if (!is_adjusted(wish)) return socket->set_option(wish.level, wish.name, wish.value, wish.length);
  const StandIn kernel(socket);
  if (Status set = kernel.set(wish); !set) return set;
  const int number = kernel.number(wish.level, wish.name).value_or(*wish.number());
  return socket->set_option(wish.level, wish.name, &number, sizeof number);
}

/// Sets an option that is not the way's on a connection on a ring, and keeps it.
Status set_kernels_option(Lookup& socket, const Wish& wish) {
  if (wish.is(IPPROTO_TCP, TCP_ULP)) {  // a protocol above TCP works on a connection of the kernel only
    const KernelsOpinion unconnected(domain_of(socket));
    return real.setsockopt(unconnected.fd(), wish.level, wish.name, wish.value, wish.length) == 0
               ? Error{ENOTCONN, "setsockopt: TCP_ULP"}
               : Error::last("setsockopt");
  }
  std::optional<int> number = wish.number();
  if (!is_plain(wish)) {
    const StandIn kernel(socket);
    if (Status set = kernel.set(wish); !set) return set;
    number = kernel.number(wish.level, wish.name);
  }
  if (socket->way() != nullptr)
    socket->way()->kept_options.keep(wish.level, wish.name, wish.value, wish.length, KeptOptions::Time::in_connection);
  if (number) {
    // The way may have no use for it.
    [[maybe_unused]] const Status told = socket->set_option(wish.level, wish.name, &*number, sizeof *number);
  }
  return ok();
}

/// Returns how many bytes of a value of `length` bytes the option uses: a value may end before its length.
socklen_t used_bytes(int level, int name, socklen_t length) {
  constexpr std::size_t kCongestionNameBytes = 16;  // TCP_CA_NAME_MAX of the kernel
  constexpr std::size_t kTcpInfoBytes = 248;        // of Linux 6; libc's is shorter
  const auto all = [&]() -> std::size_t {
    if (level == IPPROTO_TCP && name == TCP_INFO) return kTcpInfoBytes;
    if (level == IPPROTO_TCP && name == TCP_CONGESTION) return kCongestionNameBytes;
    if (level != SOL_SOCKET) return sizeof(int);
    switch (name) {
      case SO_RCVTIMEO:
      case SO_SNDTIMEO:
      case SO_RCVTIMEO_NEW:
      case SO_SNDTIMEO_NEW: return sizeof(timeval);
      case SO_LINGER: return sizeof(linger);
      case SO_PEERCRED: return sizeof(ucred);
      default: return sizeof(int);
    }
  };
  return std::min(length, static_cast<socklen_t>(all()));
}

bool is_bad(const Wish& wish) {
  // A name may end before, which check_congestion() finds out.
  const bool is_name = wish.is(IPPROTO_TCP, TCP_CONGESTION);
  const socklen_t used = is_name ? std::min<socklen_t>(wish.length, 1) : used_bytes(wish.level, wish.name, wish.length);
  return wish.value == nullptr || static_cast<int>(wish.length) < 0 || !is_readable(wish.value, used);
}

/// Answers as the kernel does, for which an unknown option may come before a bad pointer, and a null pointer may stand
/// for 0.
Status set_from_bad(Lookup& socket, int fd, const Wish& wish) {
  const bool is_on_ring = is_kernel_unasked(*socket);
  if (is_on_ring) {
    if (Status set = StandIn(socket).set(wish); !set) return set;
  } else if (real.setsockopt(fd, wish.level, wish.name, wish.value, wish.length) != 0) {
    return Error::last("setsockopt");
  }
  const auto time = is_on_ring ? KeptOptions::Time::in_connection : KeptOptions::Time::before_connection;
  if (wish.value == nullptr && socket->way() != nullptr)
    socket->way()->kept_options.keep(wish.level, wish.name, nullptr, wish.length, time);
  return ok();
}

/// Sets an option by which receives tell times. The connection stays on its ring until a receive has room for a time
/// (receive_checked()): programs set the option on sockets that they only read(2).
Status set_time_of_receives(Lookup& socket, const Wish& wish) {
  if (Status set = set_kernels_option(socket, wish); !set) return set;
  const StandIn kernel(socket);
  const bool tells = kernel.number(SOL_SOCKET, SO_TIMESTAMP).value_or(0) != 0 ||
                     kernel.number(SOL_SOCKET, SO_TIMESTAMPNS).value_or(0) != 0;
  socket->values.set(runtime::DescriptionValues::tells_times, tells ? 1 : 0);
  return ok();
}

Status set_stream_option(Lookup& socket, int fd, const Wish& wish) {
  if (is_bad(wish)) return set_from_bad(socket, fd, wish);
  if (is_promise(wish) && socket->way() != nullptr) return Error{EOPNOTSUPP, "setsockopt: not on a ring"};
  if (is_time_of_receives(wish) && hand_overs().is_connection(*socket)) {
    Status done = set_time_of_receives(socket, wish);
    return done && became_kernels_elsewhere(socket) ? kAskKernel : done;
  }
  if (is_kernels_only(socket, wish)) {
    const bool is_kernels = transports::become_kernels(runtime::Ref::share(*socket));
    return is_kernels ? kAskKernel : Error{EOPNOTSUPP, "setsockopt: not on a ring"};
  }
  const bool is_ours = is_ways_option(wish.level, wish.name) ||
                       (socket->way() != nullptr && socket->way()->has_own_option(wish.level, wish.name));
  Status done = !is_kernel_unasked(*socket) ? socket->set_option(wish.level, wish.name, wish.value, wish.length)
                : is_ours                   ? set_ways_option(socket, wish)
                                            : set_kernels_option(socket, wish);
  if (done && became_kernels_elsewhere(socket)) return kAskKernel;
  return done;
}

Status set_datagram_option(Lookup& socket, const Wish& wish) {
  if (static_cast<int>(wish.length) < 0) return Error{EINVAL, "setsockopt: length"};
  if (!is_readable(wish.value, used_bytes(wish.level, wish.name, wish.length))) return Error{EFAULT, "setsockopt"};
  return socket->set_option(wish.level, wish.name, wish.value, wish.length);
}

/// Returns the wish with its value in the kernel's form, in `kernels`, if it had one that only a way has.
Wish as_kernels(const Wish& wish, std::uint64_t& kernels) {
  if (!wish.is(SOL_SOCKET, SO_MAX_PACING_RATE) || is_bad(wish)) return wish;
  if (!to_kernels_value(wish.level, wish.name, wish.value, wish.length, kernels)) return wish;
  return {wish.level, wish.name, &kernels, sizeof kernels};
}

/// Returns whether the kernel has refused SO_VMA_USER_DATA of a TCP connection that it carries instead of a way. The
/// program cannot know that, and nobody tells it of the connection by that number.
bool is_user_data_of_stream(int fd, int level, int name) {
  return errno == ENOPROTOOPT && level == SOL_SOCKET && name == SO_VMA_USER_DATA && have_streams_user_data() &&
         has_protocol(fd, IPPROTO_TCP);
}

int set_foreign_option(int fd, const Wish& wish) {
  std::uint64_t kernels = 0;
  const Wish as_kernel = as_kernels(wish, kernels);
  const int done = real.setsockopt(fd, wish.level, wish.name, as_kernel.value, as_kernel.length);
  if (done == 0 || !is_user_data_of_stream(fd, wish.level, wish.name)) [[likely]]
    return done;
  return to_posix([&] { return vma::UserData().set_option(wish.value, wish.length); });
}

// -- get

/// SO_PEERNAME, as the kernel: the caller asks for no more bytes than there are.
Status get_peer_name(Lookup& socket, void* value, const socklen_t* length) {
  const auto peer = socket->peer_name();
  if (!peer) return Error{ENOTCONN, "getsockopt: SO_PEERNAME"};
  if (peer->length() < *length) return Error{EINVAL, "getsockopt: SO_PEERNAME"};
  std::memcpy(value, peer->get(), *length);
  return ok();
}

/// Returns whether the way of a connection knows what the kernel is to say of the socket.
bool is_told_by_way(Lookup& socket, int level, int name) {
  if (is_ways_option(level, name)) return true;
  if (socket->way() != nullptr && socket->way()->has_own_option(level, name)) return true;
  if (level == SOL_SOCKET)
    return name == SO_ERROR || name == SO_TYPE || name == SO_DOMAIN || name == SO_PROTOCOL || name == SO_ACCEPTCONN;
  if (level == IPPROTO_TCP) return name == TCP_INFO || name == TCP_MAXSEG;
  return level == IPPROTO_IPV6 && name == IPV6_V6ONLY && domain_of(socket) == AF_INET6;
}

/// Returns whether an option can be written there. No bytes can, wherever that is.
bool is_room(int level, int name, const void* value, socklen_t length) {
  const std::size_t used = used_bytes(level, name, length);
  return used == 0 || is_writable(value, used);
}

bool is_bad_room(int level, int name, const void* value, const socklen_t* length) {
  return !are_writable(length) || static_cast<int>(*length) < 0 || !is_room(level, name, value, *length);
}

Status get_kernels_option(Lookup& socket, int fd, int level, int name, void* value, socklen_t* length) {
  if (!is_bad_room(level, name, value, length) && level == SOL_SOCKET && name == SO_PEERNAME)
    return get_peer_name(socket, value, length);
  // The number stands for the socket, as long as the connection lasts.
  if (level == SOL_SOCKET && name == SO_COOKIE)
    return real.getsockopt(fd, level, name, value, length) == 0 ? ok() : Status(Error::last("getsockopt"));
  return StandIn(socket).get(level, name, value, length);
}

Status get_stream_option(Lookup& socket, int fd, int level, int name, void* value, socklen_t* length) {
  const bool is_bad = is_bad_room(level, name, value, length);
  if (!is_bad && became_kernels_elsewhere(socket)) return kAskKernel;
  const bool is_on_ring = is_kernel_unasked(*socket);
  if (is_bad && !is_on_ring)
    return real.getsockopt(fd, level, name, value, length) == 0 ? ok() : Status(Error::last("getsockopt"));
  if (!is_on_ring || (!is_bad && is_told_by_way(socket, level, name)))
    return socket->get_option(level, name, value, length);
  return get_kernels_option(socket, fd, level, name, value, length);
}

/// Gets an option in a form that only a way has, from the kernel's number of 8 bytes. Returns false where that is not
/// what the program asks for.
bool get_in_ways_form(int fd, int level, int name, void* value, const socklen_t* length) {
  std::uint64_t kernels = 0;
  socklen_t bytes = sizeof kernels;
  if (level != SOL_SOCKET || name != SO_MAX_PACING_RATE || is_bad_room(level, name, value, length) || *length <= bytes)
    return false;
  return real.getsockopt(fd, level, name, &kernels, &bytes) == 0 && bytes == sizeof kernels &&
         is_writable(value, *length) && from_kernels_value(level, name, kernels, value, *length);
}

/// getsockopt(2) of what is no socket of ours.
int get_foreign_option(int fd, int level, int name, void* value, socklen_t* length) {
  if (fd == -1 && !is_bad_room(level, name, value, length)) {
    const LibraryCall no_handlers;
    if (answer_option(level, name, value, length)) return 0;
  }
  if (get_in_ways_form(fd, level, name, value, length)) return 0;
  const int done = real.getsockopt(fd, level, name, value, length);
  if (done == 0 || !is_user_data_of_stream(fd, level, name)) [[likely]]
    return done;
  return to_posix([&] { return vma::UserData().get_option(value, length, fd); });
}

Status get_datagram_option(Lookup& socket, int level, int name, void* value, socklen_t* length) {
  if (!are_writable(length)) return Error{EFAULT, "getsockopt: length"};
  if (static_cast<int>(*length) < 0) return Error{EINVAL, "getsockopt: length"};
  if (!is_room(level, name, value, *length)) return Error{EFAULT, "getsockopt"};
  return socket->get_option(level, name, value, length);
}

}  // namespace
}  // namespace ringsock::preload

using namespace ringsock;
using namespace ringsock::preload;

RS_INTERCEPT int setsockopt(int fd, int level, int name, const void* value, socklen_t length) {
  const Wish wish{level, name, value, length};
  return route_pinned(
      fd,
      [&](Lookup& socket) {
        if (socket->is_datagram()) return set_datagram_option(socket, wish);
        std::uint64_t kernels = 0;
        return set_stream_option(socket, fd, as_kernels(wish, kernels));
      },
      [&] { return set_foreign_option(fd, wish); });
}

RS_INTERCEPT int getsockopt(int fd, int level, int name, void* value, socklen_t* length) {
  return route_pinned(
      fd,
      [&](Lookup& socket) {
        return socket->is_datagram() ? get_datagram_option(socket, level, name, value, length)
                                     : get_stream_option(socket, fd, level, name, value, length);
      },
      [&] { return get_foreign_option(fd, level, name, value, length); });
}

RS_BY_NUMBER(setsockopt);
RS_BY_NUMBER(getsockopt);
