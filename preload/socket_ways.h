// What may carry a socket beside the kernel, decided in socket(2).
#pragma once

#include <sys/socket.h>

#include <cstdint>

#include "core/runtime/endpoint.h"

namespace ringsock::transports {
class KeptOptions;
}  // namespace ringsock::transports

namespace ringsock::preload {

struct SocketWay {
  /// Where it carries bytes to. Ways are asked in this order, whatever the order of the libraries in LD_PRELOAD is: a
  /// stream that finds its peer on this host needs no other way, and one that does not is the kernel's, which
  /// take_accepted() and take_connecting() may take from it.
  enum class Reach : std::uint8_t { this_host, other_hosts };
  Reach reach;
  /// Returns whether sockets of this kind may use it. The first call reads the configuration. Threads: any.
  bool (*may_carry)(int domain, int type, int protocol);
  /// Makes an endpoint that has the kernel socket `fd`. Errors: std::bad_alloc. Threads: any.
  runtime::Ref (*make)(int fd, int domain, int type);
  /// Called with a connection that the kernel's accept4(2) has just returned, and its flags: may enter it as an
  /// endpoint. Leaves errno as it is. Null: the way has no such connections. Threads: any.
  void (*take_accepted)(int fd, int flags) = nullptr;
  /// Called with a stream that another way has left to the kernel, whose connect(2) to this address stands, or is under
  /// way: may enter it as an endpoint. `options` were set before. Leaves errno as it is. Null: the way has no such
  /// connections. Threads: any.
  void (*take_connecting)(int fd, const sockaddr* address, socklen_t length, bool stands,
                          const transports::KeptOptions& options) = nullptr;
  /// Answers getsockopt(2) for the descriptor -1, by which a program asks for what a library offers beside its sockets.
  /// Returns false for options that are not the library's. `value` has room for an int at least. Null: there are none.
  bool (*answer_option)(int level, int name, void* value, socklen_t* length) = nullptr;
  /// Flags of send(2), of kWaysSendFlags, that have a meaning only on datagram sockets of this way and on streams that
  /// its rings carry. On other sockets a send with such a flag fails with EINVAL, because nobody else would take notice
  /// of the flag.
  int send_flags = 0;
  /// Translates a value of setsockopt(2) in a form that only the way has into the kernel's, a number of 8 bytes, for
  /// sockets that the way does not carry. Returns false for all other values. Null: there are none.
  bool (*to_kernels_value)(int level, int name, const void* value, socklen_t length, std::uint64_t& out) = nullptr;
  /// The way back, for getsockopt(2): `value` has room for `length` bytes. Returns false for all other forms.
  bool (*from_kernels_value)(int level, int name, std::uint64_t kernels, void* value, socklen_t length) = nullptr;
  /// Streams of the way may have been left to the kernel without the program's knowledge, which may set
  /// SO_VMA_USER_DATA.
  bool has_user_data = false;
};

/// Flags that a way may claim: those that the kernel ignores.
inline constexpr int kWaysSendFlags = MSG_SYN;
/// Returns whether a way has claimed one of these flags. Threads: any.
bool are_ways_send_flags(int flags) noexcept;
/// Has the way answer whose option it is. Returns false when no way has that option. Threads: any.
bool answer_option(int level, int name, void* value, socklen_t* length);

/// Call those functions of the ways. Threads: any.
bool to_kernels_value(int level, int name, const void* value, socklen_t length, std::uint64_t& out);
bool from_kernels_value(int level, int name, std::uint64_t kernels, void* value, socklen_t length);

/// Returns whether a way has streams with SO_VMA_USER_DATA. Threads: any.
bool have_streams_user_data() noexcept;

/// Call those functions of the ways, for what is not in the table. Cost two loads where no way has them. Threads: any.
void take_accepted(int fd, int flags);
void take_connecting(int fd, const sockaddr* address, socklen_t length, bool stands,
                     const transports::KeptOptions& options);

/// Lets future sockets use `way`. Threads: constructors.
void add_way(const SocketWay& way);
/// Calls add_way() for what rsockets carry: streams, and datagrams within the host. Threads: constructors.
void add_rsockets();

}  // namespace ringsock::preload
