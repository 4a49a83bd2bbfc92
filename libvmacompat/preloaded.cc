// libvma: connects the intercepted calls with the sockets that may use Ethernet rings.
#include <mellanox/vma_extra.h>
#include <netinet/in.h>

#include "core/base/at_fork.h"
#include "core/base/rare_calls.h"
#include "core/extra_api/extra_api.h"
#include "core/runtime/fd_table.h"
#include "libvmacompat/extra_api/vma_library.h"
#include "libvmacompat/process/vma_process.h"
#include "libvmacompat/tcp/short_lives.h"
#include "libvmacompat/tcp/tcp_settings.h"
#include "libvmacompat/tcp/tcp_socket.h"
#include "libvmacompat/udp/pacing_rate.h"
#include "libvmacompat/udp/udp_socket.h"
#include "preload/shell.h"

namespace ringsock::vma {
namespace {

constexpr int kTypeFlags = SOCK_NONBLOCK | SOCK_CLOEXEC;

bool may_carry(int type) {
  return is_known_process() && are_ethernet_rings_permitted() && process().may_use_rings(type);
}
/// VMA_TCP=on. The first call reads the configuration.
bool are_streams_wanted() { return is_known_process() && process().config.tcp_rings != 0; }

bool may_use_rings(int domain, int type, int protocol) {
  if (domain != AF_INET && domain != AF_INET6) return false;
  switch (type & ~kTypeFlags) {
    case SOCK_DGRAM: return (protocol == 0 || protocol == IPPROTO_UDP) && may_carry(SOCK_DGRAM);
    case SOCK_STREAM:
      return (protocol == 0 || protocol == IPPROTO_TCP) && are_streams_wanted() && may_carry(SOCK_STREAM);
    default: return false;
  }
}

runtime::Ref make_socket(int fd, int domain, int type) {
  if ((type & ~kTypeFlags) == SOCK_STREAM) {
    set_first_options(fd);
    return runtime::Ref(new TcpSocket(fd));
  }
  return runtime::Ref(new UdpSocket(domain, fd));
}

/// Has a ring carry a connection that accept4(2) has made, if that is possible.
void take_accepted(int fd, int flags) {
  if (are_streams_wanted() && may_carry(SOCK_STREAM)) vma::take_accepted(fd, flags, nullptr);
}

/// The same for a connection that connect(2) has made, or is about to make.
void take_connecting(int fd, const sockaddr* address, socklen_t length, bool stands,
                     const transports::KeptOptions& options) {
  if (are_streams_wanted() && may_carry(SOCK_STREAM)) vma::take_connecting(fd, address, length, stands, options);
}

bool is_vmas_rate(int level, int name, socklen_t length) {
  return level == SOL_SOCKET && name == SO_MAX_PACING_RATE && length == sizeof(vma_rate_limit_t);
}

/// The kernel would take the rate of struct vma_rate_limit_t for bytes per second, and the burst for its upper half.
bool to_kernels_value(int level, int name, const void* value, socklen_t length, std::uint64_t& out) {
  if (!is_vmas_rate(level, name, length)) return false;
  const auto rate = parse_pacing_rate(value, length);
  if (rate) out = rate->is_limit() ? rate->bytes_per_second : PacingRate::kUnlimited;
  return static_cast<bool>(rate);
}

bool from_kernels_value(int level, int name, std::uint64_t kernels, void* value, socklen_t length) {
  return is_vmas_rate(level, name, length) &&
         static_cast<bool>(write_pacing_rate({.bytes_per_second = kernels}, value, &length));
}

bool answer_option(int level, int name, void* value, socklen_t* length) {
  const bool is_answered = answer_library_option(vma_library(), level, name, value, length);
  // Such a program asks for the rings of a connection that it has just made.
  if (is_answered) short_lives().expect_no_short_process();
  return is_answered;
}

[[gnu::constructor(101)]] void join() {
  prefer_for_extra_api(vma_library());
  preload::calling_shell().carry({.reach = preload::SocketWay::Reach::other_hosts,
                                  .may_carry = &may_use_rings,
                                  .make = &make_socket,
                                  .take_accepted = &take_accepted,
                                  .take_connecting = &take_connecting,
                                  .answer_option = &answer_option,
                                  .send_flags = VMA_SND_FLAGS_DUMMY,
                                  .to_kernels_value = &to_kernels_value,
                                  .from_kernels_value = &from_kernels_value,
                                  .has_user_data = true});
}

}  // namespace
}  // namespace ringsock::vma
