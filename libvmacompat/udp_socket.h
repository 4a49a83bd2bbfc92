// A UDP socket of an unmodified program: the kernel's socket, with rings beside it.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/biased_mutex.h"
#include "core/base/mutex.h"
#include "core/base/socket_address.h"
#include "core/base/unique_fd.h"
#include "core/device/packet/steering/copy_filter.h"
#include "core/ethernet/arrival.h"
#include "core/ethernet/destination.h"
#include "core/ethernet/ethernet.h"
#include "core/ethernet/packet_sink.h"
#include "core/ethernet/ring.h"
#include "core/ethernet/ring_choice.h"
#include "core/runtime/endpoint.h"
#include "libvmacompat/memberships.h"
#include "libvmacompat/receive_options.h"
#include "libvmacompat/send_control.h"
#include "libvmacompat/socket_family.h"
#include "libvmacompat/statistics/vma_statistics.h"

namespace ringsock::vma {

/// The descriptor is a kernel UDP socket. The kernel's socket owns the port, knows the options, and does all that rings
/// do not: destinations on this host, fragmentation, errors from the network, neighbours that are not known yet. A
/// socket bound to addresses of Ethernet interfaces also receives from their rings; datagrams to neighbours leave by
/// rings. So a datagram may come either way, and the application gets the datagrams in the order in which they are
/// found.
class UdpSocket final : public runtime::Endpoint, public ethernet::PacketSink {
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
  Result<ssize_t> send(const msghdr& message, int flags) override;
  Result<int> unread_bytes() override;
  Result<int> unsent_bytes() override;

  std::uint32_t ready() noexcept override;
  runtime::WaitFds arm() noexcept override;
  void woken() noexcept override;
  Nanos deadline() noexcept override;
  [[nodiscard]] bool asks_kernel() const noexcept override;

  void closed() noexcept override;
  void descriptor_closed(int fd) noexcept override;
  void add_fork_locks(runtime::ForkLocks& locks) override;
  void after_fork(ForkSide side) noexcept override;
  [[nodiscard]] bool is_kernels_too() const noexcept override { return true; }
  void before_exec() noexcept override;
  void passed_on() noexcept override;
  void process_ends() noexcept override;

  /// The inode of the kernel's socket; no other socket has it as long as this object lives.
  [[nodiscard]] ino_t inode() const noexcept { return inode_; }
  /// Called by the service thread when another process has a socket on this port, too: the kernel decides which socket
  /// gets a datagram.
  void leave_port_to_kernel();
  /// Called by the service thread, without locks, when netfilter rules have changed.
  static void all_follow_netfilter();
  /// Called by the service thread, without locks, when addresses have changed.
  static void all_follow_addresses();

  // As a sink of rings
  [[nodiscard]] bool accepts(const wire::EndName& source) const noexcept override {
    return !is_connected_.load(std::memory_order_acquire) || peer_name_ == source;
  }
  ethernet::Delivery deliver(ethernet::Incoming& incoming, const wire::EndName& source) noexcept override;
  runtime::Endpoint& endpoint() noexcept override { return *this; }
  [[nodiscard]] bool shares_port() const noexcept override { return shares_port_.load(std::memory_order_relaxed); }

 private:
  struct Attachment {
    std::shared_ptr<ethernet::Ring> ring;
    verbs::FlowTuple tuple;
    /// Returns whether this is multicast or broadcast, which the kernel's socket receives, too.
    [[nodiscard]] bool is_group() const { return tuple.destination_mac.has_value(); }
    bool operator==(const Attachment& other) const {
      return ring == other.ring && tuple.destination == other.tuple.destination && tuple.source == other.tuple.source;
    }
  };
  static constexpr std::size_t kMostRings = 16;
  static constexpr std::size_t kMostDestinations = 64;

  [[nodiscard]] int fd() const { return fd_.load(std::memory_order_relaxed); }

  bool note_receive_option(int level, int name, const void* value, socklen_t length);

  // udp_socket.cc: which flows are ours; setup_lock_ held; learn_names() and ethernet() also need send_lock_
  void learn_names();
  ethernet::Ethernet* ethernet();
  void attach_all();
  void attach_own_addresses();
  void detach_own_addresses();
  [[nodiscard]] bool is_port_ours();
  std::vector<std::shared_ptr<ethernet::Ring>> open_rings(const SocketAddress& local);
  template <class Visit>
  void for_each_place(const SocketAddress& name, bool is_bound, Visit visit);
  void attach_at(const SocketAddress& local, int ifindex);
  bool attach(const std::shared_ptr<ethernet::Ring>& ring, const verbs::FlowTuple& tuple);
  void detach_where(const std::function<bool(const Attachment&)>& is_meant);
  void receive_arrivals_first();
  void detach_all();
  void give_up_rings();
  void follow_addresses();
  void follow_addresses_locked();
  static void for_each_socket(const std::function<void(UdpSocket&)>& visit);
  void learn_bound_interface();

  // udp_netfilter.cc: setup_lock_ held, except for the first
  void follow_netfilter();
  bool is_left_to_netfilter(int family, int ifindex);
  void note_left_to_netfilter();

  // udp_groups.cc: setup_lock_ held, unless stated otherwise
  void learn_membership(const net::IpAddress& group);
  void learn_multicast_interface(int level, MulticastInterface interface);
  void attach_groups();
  bool refuse_copies_of(const std::vector<Attachment>& groups);
  std::vector<Attachment> wanted_groups();
  [[nodiscard]] bool is_filtered(const ethernet::Packet& datagram) const;

  /// Declared before the locks of a function that may attach rings. Its destructor tells threads that sleep on the
  /// socket about new rings, after the locks have been released.
  class RingNews {
   public:
    explicit RingNews(UdpSocket& socket) : socket_(socket) {}
    RingNews(const RingNews&) = delete;
    RingNews& operator=(const RingNews&) = delete;
    ~RingNews() {
      if (socket_.has_new_rings_.load(std::memory_order_relaxed)) [[unlikely]]
        socket_.tell_of_rings();
    }

   private:
    UdpSocket& socket_;
  };
  void tell_of_rings();

  // udp_rings.cc
  ethernet::RingKey receive_key(const SocketAddress& local);
  Result<std::shared_ptr<ethernet::Ring>> ring_of_group(const SocketAddress& group, int ifindex);
  bool poll_ring(const std::shared_ptr<ethernet::Ring>& ring);
  /// Visits the rings that are in use.
  template <class Visit>
  void for_each_polled(Visit visit) {
    for (std::uint32_t left = polled_.load(std::memory_order_acquire); left != 0; left &= left - 1)
      visit(*rings_[static_cast<std::size_t>(std::countr_zero(left))]);
  }
  void leave_unused_rings();
  void move_rings();
  bool move_attachments();
  Status set_ring_logic(const void* value, socklen_t length);

  // udp_inherited.cc
  void leave_to_family() noexcept;
  void return_arrivals() noexcept;
  void look_for_family() noexcept;
  void come_back_when_alone() noexcept;

  // udp_statistics.cc
  void describe();
  void show_queue();

  // udp_receive.cc
  /// recvmsg(2).
  struct WaitingReceive : ethernet::WaitingCall {
    msghdr& message;
    int flags;
    ssize_t answer = 0;  ///< set when it is served
  };
  Result<ssize_t> receive_waiting(msghdr& message, int flags);
  ssize_t give(const ethernet::Packet& datagram, msghdr& message, int flags);
  bool keep(ethernet::Incoming& incoming);
  Result<ssize_t> receive_from_kernel(msghdr& message, int flags);
  void count_received(std::size_t bytes);
  bool make_bell() noexcept;
  void watch_kernel(std::uint32_t events) noexcept;
  [[nodiscard]] std::uint32_t drops_of_rings() const;
  [[nodiscard]] std::uint32_t all_drops() const;  ///< those of rings and of the kernel
  bool progress() noexcept;
  ethernet::Ring::Look poll_rings(ethernet::WaitingCall* waiting) noexcept;
  void catch_up(ethernet::WaitingCall* waiting) noexcept;
  bool is_kernel_due() noexcept;
  std::uint32_t kernel_events() noexcept;

  // udp_send.cc; send_lock_ held, except for the first four
  Result<ssize_t> send_by_kernel(const msghdr& message, int flags);
  [[nodiscard]] bool may_send_by_ring(const msghdr& message, int flags) const;
  std::optional<int> send_by_ring(const msghdr& message, std::size_t payload, const SendControl* control);
  std::optional<int> send_with_control(const msghdr& message, std::size_t payload);
  ethernet::Destination* destination_for(const msghdr& message, const SendControl* control);
  ethernet::Destination* look_up_destination(const msghdr& message, const SendControl* way);
  ethernet::Destination* destination_for(const SocketAddress& address, const ethernet::WayControl* control);
  bool make_current(ethernet::Destination& destination);
  bool find_way(ethernet::Destination& destination);
  const ethernet::SendOptions& send_options(int family);
  void count_sent(std::size_t payload);
  static int hand_to_ring(ethernet::Destination& destination, const msghdr& message, std::size_t payload,
                          std::uint16_t segment_bytes, bool may_wait);

  runtime::VmaSocketStatistics statistics_;
  const int domain_;
  const ino_t inode_;
  const unsigned polls_per_kernel_look_;  ///< 0: no regular looks, only after a sleep
  std::atomic<int> fd_;

  Mutex setup_lock_;
  std::shared_ptr<ethernet::Ethernet> ethernet_;
  bool ethernet_failed_ = false;
  bool is_bound_ = false;  ///< by the application: datagrams may come by any interface
  SocketAddress local_;
  SocketAddress peer_;            ///< unspecified: not connected
  int bound_interface_ = 0;       ///< SO_BINDTODEVICE; 0: none
  bool hears_broadcast_ = false;  ///< SO_BROADCAST: rings receive broadcast, too
  std::vector<Membership> memberships_;
  std::array<MulticastInterface, 2> multicast_interfaces_;  ///< for IPv4 and IPv6: to send by
  std::vector<Attachment> attachments_;
  std::vector<soft::CopiedFlow> refused_;  ///< groups whose copies the kernel's socket refuses
  std::atomic<std::uint64_t> attached_generation_{0};
  std::atomic<bool> kernel_only_{false};  ///< because of an option, a rule or another process
  std::atomic<bool> shares_port_{false};
  std::uint16_t claimed_port_ = 0;              ///< in port_claims(); 0: none
  std::atomic<bool> is_port_elsewhere_{false};  ///< SO_REUSEADDR: another process has the port, too
  std::atomic<bool> is_connected_{false};
  std::atomic<bool> read_shut_{false};
  wire::EndName peer_name_;  ///< written before is_connected_
  // Used after fork(2), as long as other processes have the socket, too:
  std::atomic<bool> is_inherited_{false};
  bool was_kernel_only_ = false;
  std::shared_ptr<SocketFamily> family_;
  Nanos next_look_{};
  Nanos look_pause_{};
  UniqueFd bell_;                     ///< epoll: the kernel socket and the rings' channels; made on demand
  std::atomic<bool> is_deaf_{false};  ///< the last arm() had no descriptor left for a bell

  // Rings to poll, read without a lock: a count, places that are written once, and a mask of the places in use.
  std::array<std::shared_ptr<ethernet::Ring>, kMostRings> rings_;
  std::atomic<std::size_t> ring_count_{0};
  std::atomic<std::uint32_t> polled_{0};  ///< a bit for each place
  std::atomic<bool> rings_are_due_{false};
  std::atomic<bool> has_new_rings_{false};  ///< sleeping threads do not know them yet

  BiasedMutex receive_lock_;
  ethernet::ArrivalQueue arrivals_;
  std::atomic<std::size_t> older_arrivals_{0};  ///< number of arrivals older than what the kernel socket has
  ethernet::RingChoice receive_choice_;
  ReceiveOptions receive_options_;
  std::vector<Membership> source_filters_;         ///< memberships that do not accept all senders
  std::size_t receive_limit_;                      ///< the most bytes of payload that may wait
  std::atomic<bool> tells_drops_{false};           ///< SO_RXQ_OVFL
  std::atomic<bool> kernel_counts_copies_{false};  ///< the kernel's drops include refused copies
  std::atomic<bool> kernel_hint_{true};            ///< the kernel socket may have a datagram
  std::atomic<unsigned> polls_{0};                 ///< since the last look at the kernel socket
  std::atomic<bool> has_arrivals_{false};
  std::atomic<bool> has_slept_{false};  ///< since the last datagram

  BiasedMutex send_lock_;
  ethernet::RingChoice send_choice_;
  std::vector<std::unique_ptr<ethernet::Destination>> destinations_;  ///< most recently used first
  std::array<std::optional<ethernet::SendOptions>, 2> send_options_;  ///< for IPv4 and IPv6
  std::atomic<std::uint16_t> segment_bytes_{0};                       ///< UDP_SEGMENT
  std::atomic<bool> kernel_sends_{false};                             ///< because of an option
  std::atomic<bool> kernel_is_full_{false};  ///< no room for a datagram: a sender may wait for it
  std::atomic<bool> is_corked_{false};       ///< MSG_MORE: the kernel has the first part of a datagram
  std::atomic<std::uint32_t> options_generation_{1};
  std::uint32_t send_options_generation_ = 0;
  std::int64_t last_error_look_ = 0;  ///< tick() of the last look for an error on the kernel's socket (ICMP)
};

}  // namespace ringsock::vma
