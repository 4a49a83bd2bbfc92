// The names of a UDP socket, and the flows of packets that rings therefore bring to it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/socket_address.h"
#include "core/ethernet/ethernet.h"
#include "core/ethernet/ring.h"
#include "core/verbs/flow_rule.h"
#include "libvmacompat/udp/attached_flows.h"
#include "libvmacompat/udp/datagram_queue.h"
#include "libvmacompat/udp/groups.h"
#include "libvmacompat/udp/polled_rings.h"
#include "libvmacompat/udp/send_conditions.h"

namespace ringsock::vma {

class UdpSocket;

struct SocketNames {
  SocketAddress local;
  SocketAddress peer;       ///< unspecified: not connected
  bool is_bound = false;    ///< by the application: datagrams may come by any interface
  int bound_interface = 0;  ///< SO_BINDTODEVICE; 0: none
};

/// Locks: setup_lock() guards all that is not atomic. Functions are called with it held unless they say otherwise;
/// learn_names() and ethernet() are also called with the sender's lock held, so a reader needs one of the two locks.
/// The rings' receive locks and the lock of the receive queue are taken inside. Threads: any.
class Flows {
 public:
  Flows(UdpSocket& socket, KernelSocket& kernel, PolledRings& rings, ReceiveQueue& queue, SendConditions& conditions,
        runtime::VmaSocketStatistics& statistics);

  Mutex& setup_lock() { return setup_lock_; }

  // -- names
  /// Asks the kernel for both names.
  void learn_names();
  [[nodiscard]] const SocketNames& names() const { return names_; }
  /// The application has bound the socket.
  void note_bound() { names_.is_bound = true; }
  /// Returns the rings of the socket's network namespace; null: there are none.
  ethernet::Ethernet* ethernet();
  /// Returns them if they are known.
  [[nodiscard]] ethernet::Ethernet* known_ethernet() const { return ethernet_.get(); }
  [[nodiscard]] Groups& groups() { return groups_; }

  // -- without a lock
  /// Returns whether rings are out of use because of an option, a rule or another process.
  [[nodiscard]] bool is_kernel_only() const { return conditions_.kernel_only.load(std::memory_order_relaxed); }
  void set_kernel_only(bool on) { conditions_.kernel_only.store(on, std::memory_order_relaxed); }
  /// Has senders look up everything again.
  void note_change() { conditions_.generation.fetch_add(1, std::memory_order_relaxed); }
  /// Returns whether addresses have changed since the flows were attached. There must be rings.
  [[nodiscard]] bool are_stale() const {
    return attached_generation_.load(std::memory_order_relaxed) != ethernet_->address_generation();
  }
  /// Shows in the statistics that a flow is the kernel's for netfilter's sake.
  void note_left_to_netfilter();

  // -- attaching
  /// Attaches what is missing, as far as nothing speaks against it.
  void attach_all();
  /// Opens the rings before bind(2), because it takes milliseconds. Once the kernel's socket is bound, datagrams come;
  /// some programs set the options for control data only then.
  std::vector<std::shared_ptr<ethernet::Ring>> open_rings(const SocketAddress& local);
  /// Has answers come by rings to a socket that the application has neither bound nor connected.
  void attach_answers(const SocketAddress& local, int ifindex);
  /// Detaches all flows. Datagrams that are queued can still be received.
  void detach_all();
  /// The same, and nothing is attached again.
  void give_up();
  /// The same, but rings go on sending: SO_VMA_SHUTDOWN_RX.
  void stop_receiving();
  /// Moves the flows to the rings that the choice now names. Groups do not move. Returns whether any flow was moved.
  /// There must be rings.
  bool move() { return attached_.move(*ethernet_); }
  [[nodiscard]] const AttachedFlows& attached() const { return attached_; }
  /// Has the rings tell times of arrival.
  void want_times() { attached_.want_times(); }

  // -- following changes
  void follow_groups(const net::IpAddress& group);
  void follow_addresses();
  void follow_netfilter();
  void follow_bound_interface();
  /// SO_REUSEADDR was set, so other processes may have the port.
  void follow_shared_address();
  /// Another process has a socket on the port: the kernel decides which socket gets a datagram. Takes the setup lock.
  void leave_port_to_kernel();

  // -- the end
  /// The socket is closed. Returns the port that has to be left in port_claims(), or 0.
  std::uint16_t end();
  /// Called in a forked child: rings and flows are the parent's.
  void forget_after_fork() noexcept;

 private:
  void attach_own_addresses();
  void detach_own_addresses();
  void attach_at(const SocketAddress& local, int ifindex);
  bool is_port_ours();
  template <class Visit>
  void for_each_place(const SocketAddress& name, bool is_bound, Visit visit);
  bool is_left_to_netfilter(int family, int ifindex);

  // flows_of_groups.cc
  void attach_groups();
  bool refuse_copies_of(const std::vector<Attachment>& groups);
  std::vector<Attachment> wanted_groups();
  Result<std::shared_ptr<ethernet::Ring>> ring_of_group(const SocketAddress& group, int ifindex);

  UdpSocket& socket_;  ///< for port_claims()
  KernelSocket& kernel_;
  PolledRings& rings_;
  ReceiveQueue& queue_;
  SendConditions& conditions_;
  runtime::VmaSocketStatistics& statistics_;

  Mutex setup_lock_;
  std::shared_ptr<ethernet::Ethernet> ethernet_;
  bool ethernet_failed_ = false;
  bool receives_ = true;  ///< until stop_receiving()
  SocketNames names_;
  Groups groups_;
  AttachedFlows attached_;
  std::uint16_t claimed_port_ = 0;  ///< in port_claims(); 0: none
  std::atomic<std::uint64_t> attached_generation_{0};
  std::atomic<bool> is_port_elsewhere_{false};  ///< SO_REUSEADDR: another process has the port, too
};

}  // namespace ringsock::vma
