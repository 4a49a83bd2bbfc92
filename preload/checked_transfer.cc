#include "preload/checked_transfer.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "core/poll/rest_of_message.h"

namespace ringsock::preload {
namespace {

msghdr message_of(iovec& part) {
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  return message;
}

std::span<const iovec> parts_of(const msghdr& message) { return {message.msg_iov, message.msg_iovlen}; }

msghdr& bytes_only(msghdr& message) {
  message.msg_name = message.msg_control = nullptr;
  message.msg_namelen = 0;
  message.msg_controllen = 0;
  return message;
}

/// Checks the message and the list of its parts, not the memory that these point to.
Status check_message(const msghdr* message) {
  if (!are_readable(message)) return Error{EFAULT, "message"};
  if (message->msg_iovlen > IOV_MAX) return Error{EMSGSIZE, "message: parts"};
  if (!are_readable(message->msg_iov, message->msg_iovlen)) return Error{EFAULT, "message: parts"};
  return ok();
}

/// Returns whether readv(2) permits the length of each part, which it checks before the memory.
bool are_lengths_possible(const msghdr& message) {
  const auto parts = parts_of(message);
  return std::all_of(parts.begin(), parts.end(), [](const iovec& part) { return part.iov_len <= SSIZE_MAX; });
}

bool are_parts_there(KnownPages& pages, const msghdr& message) {
  const auto parts = parts_of(message);
  return std::all_of(parts.begin(), parts.end(),
                     [&](const iovec& part) { return pages.has(part.iov_base, part.iov_len); });
}

/// A copy of a message whose parts end where the writable memory ends, with one more byte of this object's own.
class WhatIsThere {
 public:
  explicit WhatIsThere(const msghdr& message) : message_(message) {
    for (const iovec& part : parts_of(message)) {
      const std::size_t there = known_memory.writable.find(part.iov_base, part.iov_len);
      parts_.push_back({part.iov_base, there});
      bytes_ += there;
      if (there != part.iov_len) break;
    }
    parts_.push_back({&byte_, 1});
    message_.msg_iov = parts_.data();
    message_.msg_iovlen = parts_.size();
  }
  WhatIsThere(const WhatIsThere&) = delete;
  WhatIsThere& operator=(const WhatIsThere&) = delete;
  [[nodiscard]] bool is_enough_for(ssize_t bytes) const { return static_cast<std::size_t>(bytes) <= bytes_; }
  msghdr& get() { return message_; }

 private:
  msghdr message_;
  std::vector<iovec> parts_;
  std::size_t bytes_ = 0;
  std::byte byte_{};
};

/// Returns whether the memory may belong to a process. Impossible addresses are refused before anything is received.
bool may_be_a_process_s(const iovec& part) {
  const auto begin = reinterpret_cast<std::uintptr_t>(part.iov_base);
  const std::uintptr_t end = begin + part.iov_len;
  return end >= begin && static_cast<std::intptr_t>(end) >= 0;
}

/// Carries out recvmsg(2) with parts of which some do not exist. Returns EFAULT when bytes belong there. A datagram is
/// lost then, a stream loses nothing.
Result<ssize_t> receive_what_fits(Lookup& socket, msghdr& message, int flags) {
  const bool is_stream = !socket->is_datagram();
  if (is_stream && (flags & MSG_TRUNC) != 0) return runtime::receive(socket, message, flags);  // tcp(7): stores nothing
  const auto parts = parts_of(message);
  if (!std::all_of(parts.begin(), parts.end(), may_be_a_process_s)) return Error{EFAULT, "recvmsg: data"};
  WhatIsThere there(message);
  auto got = runtime::receive(socket, there.get(), is_stream ? (flags | MSG_PEEK) & ~MSG_WAITALL : flags | MSG_TRUNC);
  if (!got) return got;
  if (!there.is_enough_for(*got)) return Error{EFAULT, "recvmsg: data"};
  if (is_stream && (flags & MSG_PEEK) == 0) {
    there.get().msg_iovlen -= 1;
    got = runtime::receive(socket, there.get(), (flags & ~MSG_WAITALL) | MSG_DONTWAIT);
    if (!got) return got;
  }
  message.msg_namelen = there.get().msg_namelen;
  message.msg_controllen = there.get().msg_controllen;
  message.msg_flags = there.get().msg_flags;
  return got;
}

/// Returns why a message of which a part does not exist is not sent.
Error why_not_from_bad(Lookup& socket, const msghdr& message, int flags) {
  constexpr Error kBadMemory{EFAULT, "send: data"};
  if (socket->is_datagram()) return kBadMemory;  // a datagram of no bytes would be sent
  const auto parts = parts_of(message);
  if (!std::all_of(parts.begin(), parts.end(), may_be_a_process_s)) return kBadMemory;
  if (const auto may_send = runtime::send(socket, nullptr, 0, flags); !may_send) return may_send.error();
  if (!runtime::may_block(*socket, flags) && (socket->ready() & EPOLLOUT) == 0) return {EAGAIN, "send: no room"};
  return kBadMemory;
}

/// Stores the control message of TCP_INQ: the bytes that are left to read, and one more once the peer has ended its
/// direction.
/// @param room  the application's msg_control, of `bytes` bytes
void tell_unread(Lookup& socket, msghdr& message, void* room, std::size_t bytes) {
  const auto unread = socket->unread_bytes();
  const int left = (unread ? *unread : 0) + ((socket->ready() & EPOLLRDHUP) != 0 ? 1 : 0);
  if (room == nullptr || bytes < sizeof(cmsghdr)) {
    message.msg_flags |= MSG_CTRUNC;
    return;
  }
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof left)> stored{};
  const std::size_t length = std::min<std::size_t>(bytes, CMSG_LEN(sizeof left));
  if (length < CMSG_LEN(sizeof left)) message.msg_flags |= MSG_CTRUNC;
  const cmsghdr header{.cmsg_len = length, .cmsg_level = IPPROTO_TCP, .cmsg_type = TCP_CM_INQ};
  std::memcpy(stored.data(), &header, sizeof header);
  std::memcpy(stored.data() + CMSG_LEN(0), &left, sizeof left);
  if (!is_writable(room, length)) return;
  std::memcpy(room, stored.data(), length);
  message.msg_controllen = std::min<std::size_t>(bytes, stored.size());
}

/// Returns whether a receive that has room for control data must tell a time. The connection is the kernel's then.
bool must_tell_time(Lookup& socket) {
  if (socket->is_datagram() || socket->values.get(runtime::DescriptionValues::tells_times) == 0) return false;
  socket.pin();
  return transports::become_kernels(runtime::Ref::share(*socket));
}

Result<ssize_t> receive_parts(Lookup& socket, msghdr& message, int flags) {
  if (are_parts_there(known_memory.writable, message)) [[likely]]
    return runtime::receive(socket, message, flags);
  if (!are_lengths_possible(message)) return Error{EINVAL, "recvmsg: length"};
  return receive_what_fits(socket, message, flags);
}

}  // namespace

bool is_all(const msghdr& message, ssize_t bytes) {
  std::size_t total = 0;
  for (const iovec& part : parts_of(message)) total += part.iov_len;
  return static_cast<std::size_t>(bytes) >= total;
}

ssize_t receive_rest(int fd, Lookup& socket, void* data, std::size_t length, int flags, ssize_t done) {
  if (!rest_goes_on_by_kernel(socket, flags)) return done;
  const auto begin = static_cast<std::size_t>(done);
  const OutsideLibrary waiting_in_kernel;
  const ssize_t more = real.recv(fd, static_cast<std::byte*>(data) + begin, length - begin, flags);
  return done + std::max<ssize_t>(more, 0);
}

ssize_t send_rest(int fd, Lookup& socket, const void* data, std::size_t length, int flags, ssize_t done) {
  if (!rest_goes_on_by_kernel(socket, flags)) return done;
  const auto begin = static_cast<std::size_t>(done);
  const OutsideLibrary waiting_in_kernel;
  const ssize_t more = real.send(fd, static_cast<const std::byte*>(data) + begin, length - begin, flags | MSG_NOSIGNAL);
  return done + std::max<ssize_t>(more, 0);
}

ssize_t receive_rest(int fd, Lookup& socket, const msghdr& message, int flags, ssize_t done) {
  if (is_all(message, done) || !rest_goes_on_by_kernel(socket, flags)) return done;
  runtime::RestOfMessage rest(message);
  rest.advance(static_cast<std::size_t>(done));
  const OutsideLibrary waiting_in_kernel;
  return done + std::max<ssize_t>(real.recvmsg(fd, &bytes_only(rest.get()), flags), 0);
}

ssize_t send_rest(int fd, Lookup& socket, const msghdr& message, int flags, ssize_t done) {
  if (is_all(message, done) || !rest_goes_on_by_kernel(socket, flags)) return done;
  runtime::RestOfMessage rest(message);
  rest.advance(static_cast<std::size_t>(done));
  const OutsideLibrary waiting_in_kernel;
  return done + std::max<ssize_t>(real.sendmsg(fd, &bytes_only(rest.get()), flags | MSG_NOSIGNAL), 0);
}

Result<ssize_t> receive_into_bad(Lookup& socket, void* data, std::size_t length, int flags) {
  iovec part{data, length};
  msghdr message = message_of(part);
  return receive_what_fits(socket, message, flags);
}

Error send_from_bad(Lookup& socket, const void* data, std::size_t length, int flags) {
  iovec part{const_cast<void*>(data), length};
  return why_not_from_bad(socket, message_of(part), flags);
}

Result<ssize_t> receive_checked(Lookup& socket, msghdr* message, int flags) {
  if (Status fine = check_message(message); !fine) return fine.error();
  if (!are_writable(message)) [[unlikely]] {
    msghdr copy = *message;
    auto got = receive_parts(socket, copy, flags);
    return got ? Result<ssize_t>(Error{EFAULT, "recvmsg: message"}) : got;
  }
  // The kernel drops control data for which there is no room.
  if (message->msg_control != nullptr && message->msg_controllen != 0 && !is_writable(message->msg_control, 1)) {
    message->msg_control = nullptr;
    message->msg_controllen = 0;
  }
  if (message->msg_name != nullptr && static_cast<int>(message->msg_namelen) < 0) return Error{EINVAL, "recvmsg: name"};
  const bool has_name = message->msg_name != nullptr && socket->is_datagram();
  if (has_name && !is_writable(message->msg_name, std::min<socklen_t>(message->msg_namelen, sizeof(sockaddr_in)))) {
    msghdr copy = *message;
    copy.msg_name = nullptr;
    auto got = receive_parts(socket, copy, flags);
    return got ? Result<ssize_t>(Error{EFAULT, "recvmsg: name"}) : got;
  }
  if (message->msg_controllen != 0 && must_tell_time(socket)) return kAskKernel;
  void* const room = message->msg_control;
  const std::size_t room_bytes = message->msg_controllen;
  auto got = receive_parts(socket, *message, flags);
  if (got && socket->values.get(runtime::DescriptionValues::tells_unread) != 0) [[unlikely]]
    tell_unread(socket, *message, room, room_bytes);
  return got;
}

Result<ssize_t> send_checked(Lookup& socket, const msghdr* message, int flags) {
  if (Status fine = check_message(message); !fine) return fine.error();
  if (message->msg_name != nullptr) {
    if (static_cast<int>(message->msg_namelen) < 0) return Error{EINVAL, "sendmsg: name"};
    if (!is_readable(message->msg_name, std::min<std::size_t>(message->msg_namelen, sizeof(sockaddr_storage))))
      return Error{EFAULT, "sendmsg: name"};
  }
  if (message->msg_controllen != 0) [[unlikely]] {
    if (message->msg_controllen > INT_MAX) return Error{ENOBUFS, "sendmsg: control"};
    if (!is_readable(message->msg_control, message->msg_controllen)) return Error{EFAULT, "sendmsg: control"};
  }
  if (are_parts_there(known_memory.readable, *message)) [[likely]]
    return runtime::send(socket, *message, flags);
  if (!are_lengths_possible(*message)) return Error{EINVAL, "sendmsg: length"};
  return why_not_from_bad(socket, *message, flags);
}

Result<ssize_t> receive_from_checked(Lookup& socket, void* data, std::size_t length, int flags, sockaddr* address,
                                     socklen_t* address_length) {
  const Status room = check_room_for_address(address, address_length);
  iovec part{data, length};
  msghdr message = message_of(part);
  if (room) [[likely]] {
    message.msg_name = address;
    message.msg_namelen = *address_length;
  }
  auto got =
      is_writable(data, length) ? runtime::receive(socket, message, flags) : receive_what_fits(socket, message, flags);
  if (!got) return got;
  // A connection stores no name.
  const bool is_lost = !room && (socket->is_datagram() || !are_writable(address_length) || *address_length > INT_MAX);
  if (is_lost) return room.error();
  *address_length = message.msg_namelen;
  return got;
}

Result<ssize_t> send_to_checked(Lookup& socket, const void* data, std::size_t length, int flags,
                                const sockaddr* address, socklen_t address_length) {
  if (Status fine = check_address(address, address_length); !fine) [[unlikely]]
    return fine.error();
  iovec part{const_cast<void*>(data), length};
  msghdr message = message_of(part);
  message.msg_name = const_cast<sockaddr*>(address);
  message.msg_namelen = address_length;
  if (is_readable(data, length)) [[likely]]
    return runtime::send(socket, message, flags);
  return why_not_from_bad(socket, message, flags);
}

}  // namespace ringsock::preload
