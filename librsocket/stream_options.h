// setsockopt and getsockopt of a stream socket.
#pragma once

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/result.h"
#include "core/config/rsocket_config.h"
#include "librsocket/queue_settings.h"
#include "librsocket/socket_options.h"
#include "librsocket/stream_core.h"

namespace ringsock::rs {

class Keepalive;

/// The options of one socket. Setting one takes setup_lock; the values of IntOptions and SO_LINGER may be read by any
/// thread, `queues` and the route with setup_lock held.
class StreamOptions final : public StreamPart {
 public:
  StreamOptions(StreamSocket& socket, StreamCore& core, const config::RsocketConfig& config);

  Status set(int level, int name, const void* value, socklen_t length);
  Status get(int level, int name, void* value, socklen_t* length);
  /// Takes over the options that an accepted socket inherits from its listener.
  void inherit(const StreamOptions& listener);

  [[nodiscard]] int integer(int level, int name) const { return integers_.get(level, name); }
  /// Returns IP_TOS, or IPV6_TCLASS of an IPv6 socket that has it.
  [[nodiscard]] std::uint8_t type_of_service() const;
  /// Lets as many bytes wait unread as with the kernel, or as SO_SNDBUF and SO_RCVBUF say. Call it at first.
  void buffer_like_kernel() { queues_.receive_overflow = queues_.send_overflow = kOverflowBytes; }
  [[nodiscard]] bool is_like_kernel() const { return queues_.send_overflow != 0; }
  [[nodiscard]] const QueueSettings& queues() const { return queues_; }
  [[nodiscard]] const std::vector<std::byte>& route() const { return route_; }  ///< RDMA_ROUTE
  [[nodiscard]] bool lingers() const { return (linger() & kLingers) != 0; }
  [[nodiscard]] int linger_seconds() const { return static_cast<int>(linger() & ~kLingers); }

 private:
  Status set_integer(int level, int name, const void* value, socklen_t length);
  Status set_socket_level(int name, const void* value, socklen_t length, bool& handled);
  Status set_linger(const void* value, socklen_t length);
  Status set_buffer(int name, const void* value, socklen_t length);
  Status set_rdma_level(int name, const void* value, socklen_t length);
  Status set_route(const void* value, socklen_t length);
  Status get_socket_level(int name, void* value, socklen_t* length, bool& handled);
  Status get_tcp_level(int name, void* value, socklen_t* length, bool& handled);
  Status get_rdma_level(int name, void* value, socklen_t* length);
  Status write_route(void* value, socklen_t* length) const;
  void describe_connection(tcp_info& info);
  Status get_tcp_info(void* value, socklen_t* length);
  void update_low_mark();
  /// Returns what is to be stopped without locks, or nothing.
  std::shared_ptr<Keepalive> option_changed(int level, int name);
  /// Returns the seconds of SO_LINGER, and the bit kLingers where it is on.
  [[nodiscard]] std::int64_t linger() const { return core_.endpoint.values.get(runtime::DescriptionValues::linger); }
  static constexpr std::int64_t kLingers = std::int64_t{1} << 32;
  /// The reported segment size, which RDMA does not have: 1 << (7 + path MTU code 4), as reported by rdma-core on
  /// Ethernet.
  static constexpr int kSegmentBytes = 2048;
  /// What the kernel reports of a connection on loopback. Programs choose the size of their messages by it (iperf3 -u).
  static constexpr int kLoopbackSegmentBytes = 32768;
  [[nodiscard]] int segment_bytes() const { return is_like_kernel() ? kLoopbackSegmentBytes : kSegmentBytes; }

  IntOptions integers_;
  QueueSettings queues_;
  // What buffer_like_kernel()'s sockets say of SO_SNDBUF and SO_RCVBUF once they were set; 0: never.
  int told_send_buffer_ = 0;
  int told_receive_buffer_ = 0;
  std::vector<std::byte> route_;
};

}  // namespace ringsock::rs
