#include "librsocket/datagram/datagram_options.h"

#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <mutex>

#include "librsocket/option_values.h"
#include "librsocket/socket_options.h"

namespace ringsock::rs {

namespace {

constexpr std::uint32_t kFewestSlots = 2;

struct Option {
  int level;
  int name;
  bool is_read_only = false;
};
/// The options that the kernel's socket has for us.
constexpr std::array kKernels{Option{SOL_SOCKET, SO_REUSEADDR},
                              Option{SOL_SOCKET, SO_REUSEPORT},
                              Option{SOL_SOCKET, SO_BROADCAST},
                              Option{SOL_SOCKET, SO_DONTROUTE},
                              Option{SOL_SOCKET, SO_PRIORITY},
                              Option{SOL_SOCKET, SO_BINDTODEVICE},
                              Option{SOL_SOCKET, SO_SNDBUF},
                              Option{SOL_SOCKET, SO_SNDBUFFORCE},
                              Option{SOL_SOCKET, SO_RCVBUF},
                              Option{SOL_SOCKET, SO_RCVBUFFORCE},
                              Option{SOL_SOCKET, SO_TYPE, true},
                              Option{SOL_SOCKET, SO_DOMAIN, true},
                              Option{SOL_SOCKET, SO_PROTOCOL, true},
                              Option{SOL_SOCKET, SO_ACCEPTCONN, true},
                              Option{IPPROTO_IP, IP_TOS},
                              Option{IPPROTO_IP, IP_TTL},
                              Option{IPPROTO_IPV6, IPV6_V6ONLY},
                              Option{IPPROTO_IPV6, IPV6_TCLASS},
                              Option{IPPROTO_IPV6, IPV6_UNICAST_HOPS}};

const Option* find_kernels(int level, int name) {
  const auto* const found = std::find_if(kKernels.begin(), kKernels.end(), [&](const Option& option) {
    return option.level == level && option.name == name;
  });
  return found == kKernels.end() ? nullptr : found;
}

bool is_receive_buffer(int level, int name) {
  return level == SOL_SOCKET && (name == SO_RCVBUF || name == SO_RCVBUFFORCE);
}

}  // namespace

DatagramOptions::DatagramOptions(DatagramCore& core, runtime::Endpoint& endpoint, const config::RsocketConfig& config)
    : core_(core),
      endpoint_(endpoint),
      send_queue_(config.sqsize_default),
      receive_queue_(config.rqsize_default),
      inline_bytes_(config.inline_default),
      receive_bytes_(config.mem_default),
      send_bytes_(config.wmem_default) {
  update_room();
}

/// The receive buffer holds slots of 2048 bytes, no more than the receive queue; the send buffer likewise.
void DatagramOptions::update_room() {
  const auto slots = [](std::uint32_t bytes, int queue) {
    return std::clamp(bytes / static_cast<std::uint32_t>(wire::kRsSlotBytes), kFewestSlots,
                      static_cast<std::uint32_t>(queue));
  };
  core_.sizes = {slots(receive_bytes_, receive_queue_), slots(send_bytes_, send_queue_)};
  core_.arrivals.set_limit(receive_bytes_);
  core_.pieces.set_limit(receive_bytes_);
}

Status DatagramOptions::set(int level, int name, const void* value, socklen_t length) {
  if (level == kSolRdma) return set_rdma(name, value, length);
  const int usual = level == SOL_SOCKET ? as_first_number(name) : name;
  if (level == SOL_SOCKET && (usual == SO_RCVTIMEO || usual == SO_SNDTIMEO)) {
    const auto timeout = read_timeout(value, length);
    if (!timeout) return timeout.error();
    usual == SO_RCVTIMEO ? endpoint_.set_receive_timeout(*timeout) : endpoint_.set_send_timeout(*timeout);
    return ok();
  }
  return set_by_kernel(level, name, value, length);
}

Status DatagramOptions::set_by_kernel(int level, int name, const void* value, socklen_t length) {
  const Option* const option = find_kernels(level, name);
  if (option == nullptr || option->is_read_only) return Error{ENOPROTOOPT, "rsetsockopt"};
  const std::lock_guard guard(core_.lock);
  if (::setsockopt(core_.port.fd(), level, name, value, length) != 0) return Error::last("rsetsockopt");
  if (!is_receive_buffer(level, name)) return ok();
  int bytes = 0;
  socklen_t size = sizeof bytes;
  if (::getsockopt(core_.port.fd(), SOL_SOCKET, SO_RCVBUF, &bytes, &size) == 0) {
    receive_bytes_ = static_cast<std::uint32_t>(bytes);
    update_room();
  }
  return ok();
}

Status DatagramOptions::set_rdma(int name, const void* value, socklen_t length) {
  const auto number = read_int(value, length);
  if (!number) return number.error();
  if (*number < 0) return Error{EINVAL, "rsetsockopt: negative"};
  const std::lock_guard guard(core_.lock);
  if (!core_.lanes.empty()) return Error{EINVAL, "rsetsockopt: in use"};
  const int queue = std::clamp(*number, kMinQueue, kMaxQueue);
  switch (name) {
    case kRdmaSqSize: send_queue_ = queue; break;
    case kRdmaRqSize: receive_queue_ = queue; break;
    case kRdmaInline: inline_bytes_ = *number; return ok();
    default: return Error{ENOPROTOOPT, "rsetsockopt"};
  }
  update_room();
  return ok();
}

Status DatagramOptions::get(int level, int name, void* value, socklen_t* length) {
  if (value == nullptr || length == nullptr) return Error{EFAULT, "rgetsockopt"};
  if (level == kSolRdma) return get_rdma(name, value, length);
  const int usual = level == SOL_SOCKET ? as_first_number(name) : name;
  if (level == SOL_SOCKET && usual == SO_RCVTIMEO) return write_timeout(value, length, endpoint_.receive_timeout());
  if (level == SOL_SOCKET && usual == SO_SNDTIMEO) return write_timeout(value, length, endpoint_.send_timeout());
  const std::lock_guard guard(core_.lock);
  if (level == SOL_SOCKET && name == SO_ERROR) return write_int(value, length, core_.take_error());
  if (find_kernels(level, name) == nullptr) return Error{ENOPROTOOPT, "rgetsockopt"};
  return ::getsockopt(core_.port.fd(), level, name, value, length) == 0 ? ok() : Status(Error::last("rgetsockopt"));
}

Status DatagramOptions::get_rdma(int name, void* value, socklen_t* length) {
  const std::lock_guard guard(core_.lock);
  switch (name) {
    case kRdmaSqSize: return write_int(value, length, send_queue_);
    case kRdmaRqSize:
      return write_int(
          value, length,
          static_cast<int>(core_.lanes.empty() ? static_cast<std::uint32_t>(receive_queue_) : core_.sizes.receives));
    case kRdmaInline:
      return write_int(value, length, core_.lanes.empty() ? inline_bytes_ : static_cast<int>(wire::kRsSlotBytes));
    default: return Error{ENOPROTOOPT, "rgetsockopt"};
  }
}

}  // namespace ringsock::rs
