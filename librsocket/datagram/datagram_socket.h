// A datagram rsocket, as made by rsocket(…, SOCK_DGRAM, …).
#pragma once

#include <sys/socket.h>

#include <mutex>

#include "core/runtime/endpoint.h"
#include "librsocket/datagram/datagram_core.h"
#include "librsocket/datagram/datagram_options.h"
#include "librsocket/datagram/intake.h"
#include "librsocket/datagram/sender.h"

namespace ringsock::rs {

/// Has the parts, and passes the calls on to them under the core's lock.
class DatagramSocket final : public runtime::Endpoint {
 public:
  /// @param fd    the application's descriptor, a kernel UDP socket of `domain`
  /// @param port  a duplicate of it
  DatagramSocket(Process& process, int domain, int fd, UdpPort port);
  ~DatagramSocket() override;

  // -- Transfer
  Result<ssize_t> receive(msghdr& message, int flags) override;
  Result<ssize_t> send(const msghdr& message, int flags) override;
  Result<int> unread_bytes() override;
  Result<int> unsent_bytes() override { return 0; }

  // -- Readiness
  std::uint32_t ready() noexcept override;
  runtime::WaitFds arm() noexcept override;
  void woken() noexcept override;
  Nanos deadline() noexcept override;
  [[nodiscard]] bool waits_for_our_cpus() const noexcept override;

  // -- Setup
  Status bind(const sockaddr* address, socklen_t length) override;
  Status connect(const sockaddr* address, socklen_t length) override;
  Status shutdown(int how) override;
  Result<SocketAddress> local_name() override;
  Result<SocketAddress> peer_name() override;
  Status set_option(int level, int name, const void* value, socklen_t length) override {
    return options_.set(level, name, value, length);
  }
  Status get_option(int level, int name, void* value, socklen_t* length) override {
    return options_.get(level, name, value, length);
  }

  // -- DescriptorLife, ProcessLife
  void closed() noexcept override;
  void add_fork_locks(runtime::ForkLocks& locks) override;
  void after_fork(ForkSide side) noexcept override;

  runtime::SocketStatistics* statistics() noexcept override { return &core_.statistics; }

 private:
  Status check_open() const;
  void unlock_and_tell(std::unique_lock<Mutex>& guard);
  Result<ssize_t> take_oldest(msghdr& message, int flags);
  Status disconnect();
  std::uint32_t events();

  DatagramCore core_;
  Intake intake_;
  DatagramSender sender_;
  DatagramOptions options_;
  const int descriptor_;  ///< for rsstat(1)
};

}  // namespace ringsock::rs
