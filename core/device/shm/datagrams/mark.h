// The places of the kernel's datagrams beside those of a ring.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace ringsock::soft {

// The kernel carries a sender's first datagrams, and later those that its ring does not take. The receiver finds their
// place by hop limit and traffic class (TOS), which it reads as control data, and which the application does not see.
// On the way within the host nothing looks at them. The datagram behind which the ring begins has a mark. Those of the
// kernel behind it are numbered 1, 2 ..., so that the receiver knows which ones the kernel has lost.

/// A place: the hop limit, and 256 times the traffic class.
using Place = int;

/// Marks have the hop limits from kFirstMark on, with the traffic class as the higher digit. A socket uses one after
/// the other, for all its rings: one that waits at the receiver must not be taken for a later one.
inline constexpr int kFirstMark = 96;
inline constexpr int kMarkLimits = 32;
/// Returns the mark behind `mark`; the first one for 0. Pure.
constexpr Place mark_behind(Place mark) {
  if (mark == 0) return kFirstMark;
  if (mark % 256 + 1 < kFirstMark + kMarkLimits) return mark + 1;
  return (mark / 256 + 1) % 256 * 256 + kFirstMark;
}
constexpr bool is_mark(Place place) { return (place & 255) >= kFirstMark && (place & 255) < kFirstMark + kMarkLimits; }

/// Numbers are the hop limits from kFirstNumber on, with the traffic class as the higher digit.
inline constexpr int kFirstNumber = 128;
constexpr bool is_number(Place place) { return (place & 255) >= kFirstNumber; }
/// Returns the place of the datagram with that number. Pure.
constexpr Place place_of(std::uint32_t number) {
  return kFirstNumber + static_cast<int>(number % 128) + 256 * static_cast<int>(number / 128 % 256);
}
/// Returns the number of a datagram that comes behind number `last`. One that the kernel has delivered late, and one
/// without a number, are taken for `last`. Pure.
/// @param lost  how many datagrams the kernel has lost behind `last`, of this sender and others: of those that are
///              likely to be late, and of more than 32,768 numbers behind `last`, only so many are believed
/// @param only_its  they are all this sender's
constexpr std::uint32_t number_behind(std::uint32_t last, Place place, std::uint32_t lost, bool only_its) {
  constexpr std::uint32_t kNumbers = 128 * 256, kMostBehind = 24'000;
  if (!is_number(place)) return last;
  const auto remainder = static_cast<std::uint32_t>((place & 255) - kFirstNumber + place / 256 * 128);
  const std::uint32_t more = (remainder - last) % kNumbers;
  if (more > kMostBehind && lost < more - 1) return last;
  if (more == 0 || lost < more || !only_its) return last + more;
  return last + more + (lost - (more - 1)) / kNumbers * kNumbers;
}

/// The longest control data beside a place.
inline constexpr std::size_t kMostControlData = 256;
/// sendmsg(2) without waiting, with that place beside its control data. Returns -1 and sets errno as that does; EINVAL:
/// too much control data, or perhaps a system that sets no hop limits. Threads: any.
/// @param family  of the destination, of a SocketAddress::unmapped()
ssize_t send_with_place(int fd, const msghdr& message, int flags, int family, Place place);

/// Makes the socket tell the places of what it receives from now on, or not any more. Threads: any.
/// @param domain  of the socket
void tell_places(int fd, int domain, bool on);
/// Room for a place in msghdr::msg_control, of an IPv6 socket, which tells both kinds.
inline constexpr std::size_t kPlaceRoom = 4 * CMSG_SPACE(sizeof(int));
/// Returns the place of a received datagram, 0: it is not told. Pure.
Place place_of(const msghdr& message);

}  // namespace ringsock::soft
