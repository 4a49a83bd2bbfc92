// A UDP socket of an unmodified program: the kernel's socket, with rings beside it.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <cstdint>

#include "core/base/socket_address.h"
#include "core/ethernet/ring.h"
#include "core/runtime/endpoint.h"
#include "libvmacompat/process/ring_user.h"
#include "libvmacompat/statistics/vma_statistics.h"
#include "libvmacompat/udp/datagram_queue.h"
#include "libvmacompat/udp/flows.h"
#include "libvmacompat/udp/kernel_socket.h"
#include "libvmacompat/udp/library_options.h"
#include "libvmacompat/udp/polled_rings.h"
#include "libvmacompat/udp/receive_callback.h"
#include "libvmacompat/udp/sender.h"
#include "libvmacompat/udp/udp_api.h"
#include "libvmacompat/udp/udp_inheritance.h"
#include "libvmacompat/udp/udp_options.h"

namespace ringsock::vma {

/// The descriptor is a kernel UDP socket. The kernel's socket owns the port, knows the options, and does all that rings
/// do not: destinations on this host, fragmentation, errors from the network, neighbours that are not known yet. A
/// socket bound to addresses of Ethernet interfaces also receives from their rings; datagrams to neighbours leave by
/// rings. So a datagram may come either way, and the application gets the datagrams in the order in which they are
/// found. The socket has an object for each duty, and each object names its locks; this class directs the calls to
/// them.
class UdpSocket final : public runtime::Endpoint, public RingUser {
 public:
  /// @param fd  the kernel socket, which the caller puts into the table
  UdpSocket(int domain, int fd);
  ~UdpSocket() override;

  Status bind(const sockaddr* address, socklen_t length) override;
  Status connect(const sockaddr* address, socklen_t length) override;
  Status shutdown(int how) override;
  Result<SocketAddress> local_name() override;
  Result<SocketAddress> peer_name() override;
  Status set_option(int level, int name, const void* value, socklen_t length) override;
  Status get_option(int level, int name, void* value, socklen_t* length) override;
  Result<ssize_t> receive(msghdr& message, int flags) override;
  Result<ssize_t> send(const msghdr& message, int flags) override;  // sender.cc
  Result<int> unread_bytes() override;
  Result<int> unsent_bytes() override;

  std::uint32_t ready() noexcept override;
  runtime::WaitFds arm() noexcept override;
  void woken() noexcept override;
  Nanos deadline() noexcept override;
  [[nodiscard]] bool asks_kernel() const noexcept override;
  [[nodiscard]] bool awaits_first() const noexcept override;

  void closed() noexcept override;
  void descriptor_closed(int fd) noexcept override;
  void add_fork_locks(runtime::ForkLocks& locks) override;
  void after_fork(ForkSide side) noexcept override;
  [[nodiscard]] bool is_kernels_too() const noexcept override { return true; }
  void before_exec() noexcept override;
  void passed_on() noexcept override;
  void process_ends() noexcept override;

  ApiSocket* as_api_socket() noexcept override { return &api_; }
  RingSocket& api() noexcept override { return api_; }
  void follow_addresses() override;
  void follow_netfilter() override;
  /// Called by the service thread when another process has a socket on this port, too.
  void leave_port_to_kernel() { flows_.leave_port_to_kernel(); }
  [[nodiscard]] ino_t inode() const noexcept { return kernel_.inode(); }
  /// Shows the socket's description in the statistics. The setup lock is held.
  void describe();

 private:
  friend class UdpApi;  // receives, too
  // udp_receive.cc
  Result<ssize_t> receive_from_kernel(msghdr& message, int flags);
  ethernet::Ring::Look poll_rings(ethernet::WaitingCall* waiting) noexcept;
  bool progress() noexcept;
  enum class Change { addresses, place };
  void follow_at_once(Change what);

  // udp_socket.cc; the setup lock is held
  bool note_option(int level, int name, const void* value, socklen_t length);
  Status apply(OptionEffect effect, int level, int name);

  runtime::VmaSocketStatistics statistics_;
  KernelSocket kernel_;
  // An object may refer to later ones, but uses them only after all have been made. Rings end before flows_, which has
  // the rings' Ethernet; those of sender_ end in the destructor.
  Sender sender_;
  Flows flows_;
  PolledRings rings_;
  ReceiveQueue queue_;
  ReceiveCallback callback_;
  Inheritance inheritance_;
  LibraryOptions library_options_;
  UdpApi api_;
  std::atomic<bool> read_shut_{false};
};

}  // namespace ringsock::vma
