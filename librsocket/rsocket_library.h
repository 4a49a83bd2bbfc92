// What VMA's Extra API does for processes with rsockets only.
#pragma once

#include <sys/socket.h>

#include "core/extra_api/api_library.h"

namespace ringsock::rs {

/// Rules and threads concern the sockets of unmodified programs; the counters are those of all rsockets.
class RsocketLibrary final : public vma::ApiLibrary {
 public:
  /// recvfrom(2)
  using Receive = decltype(&::recvfrom);
  /// @param by_kernel  the application's, for descriptors that are not the library's
  explicit constexpr RsocketLibrary(Receive by_kernel) : by_kernel_(by_kernel) {}

  bool has_events() const override;
  RingSettings ring_settings() const override;
  void warn(const char* text) const override;
  Status add_rule(const std::string& line) const override;
  Status offload_thread(pthread_t thread, bool on) const override;
  Status dump_sockets(int fd, int level) const override;
  bool has_moving_connections() const override { return true; }
  ssize_t receive_by_kernel(int fd, void* room, std::size_t bytes, int flags, sockaddr* from,
                            socklen_t* from_length) const override {
    return by_kernel_(fd, room, bytes, flags, from, from_length);
  }

 private:
  const Receive by_kernel_;
};

}  // namespace ringsock::rs
