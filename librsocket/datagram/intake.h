// Takes in what has come for a datagram rsocket, by the queue pair and by the kernel.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "librsocket/datagram/datagram_core.h"

namespace ringsock::rs {

/// Keeps the order of each peer's datagrams: a peer changes from the kernel to the queue pair once it has our answer,
/// and from the queue pair to the kernel when our receive buffer is full. Threads: the lock of the core.
class Intake {
 public:
  explicit Intake(DatagramCore& core) : core_(core) {}

  /// Looks once, and answers rendezvous packets.
  void look(Nanos now);
  /// The same for a call that looks again and again, and sleeps on the kernel's socket, too, before it ends without a
  /// datagram. While the queue pairs bring the datagrams most looks leave out that socket, which costs a system call.
  void look_while_waiting(Nanos now);
  /// The next look_while_waiting() leaves out nothing: a sleeper was woken.
  void look_everywhere_next() { is_woken_ = true; }
  /// Returns whether looks have added datagrams since the last call, of which others who wait must be told.
  [[nodiscard]] bool take_news() { return std::exchange(has_news_, false); }
  /// Gives the oldest datagram's room back.
  void drop_oldest();

 private:
  /// A rendezvous packet.
  struct FromKernel {
    SocketAddress from;
    SocketAddress to;
    wire::RsUdpOp op{};
    wire::RsUdpNote note;
    std::uint32_t qp_number = 0;
    std::unique_ptr<std::byte[]> payload;
    std::size_t bytes = 0;
    bool is_done = false;
  };
  /// A datagram of a queue pair, in its slot or, if it has come in pieces, in memory of its own.
  struct FromLane {
    Lane* lane = nullptr;
    std::uint32_t slot = 0;
    std::uint32_t from = 0;  ///< the sender's queue pair
    SocketAddress source;
    std::span<const std::byte> payload;
    std::unique_ptr<std::byte[]> own;
  };

  enum class Looks { closely, at_what_was_left };
  void look_once(Nanos now, Looks looks);
  [[nodiscard]] bool has_packets_of_lane_users();
  void take_from_lanes(Nanos now);
  void take_from(Lane& lane, Nanos now);
  [[nodiscard]] bool take_datagram(Lane& lane, const Lane::Came& came);
  [[nodiscard]] bool take_piece(Lane& lane, const Lane::Came& came, Nanos now);
  void take_from_kernel(std::size_t most);
  void take_packet(std::span<const std::byte> bytes, const UdpPort::Packet& packet);
  [[nodiscard]] bool has_switched_to_lane();
  void serve_packets(bool of_lane_users, Nanos now);
  void serve(FromKernel& packet, Nanos now);
  void serve_control(const FromKernel& packet, Nanos now);
  void learn_answer(Peer* peer, const FromKernel& packet, Nanos now);
  void answer(Peer& peer, const FromKernel& packet, Nanos now);
  [[nodiscard]] bool may_exchange(Peer& peer, std::uint32_t qp_number, Nanos now);
  void deliver_from_lane(std::size_t before_kernel, Nanos now);
  void note_source(const FromLane& one, Nanos now);
  [[nodiscard]] SocketAddress with_scope(const SocketAddress& source);
  [[nodiscard]] bool is_wanted(const SocketAddress& source) const;
  void deliver(FromLane& one);
  void add(Arrival arrival);

  static constexpr unsigned kLooksPerKernelLook = 64;  ///< while the queue pair is busy
  static constexpr unsigned kLooksOfWaiting = 256;     ///< for one at the kernel: some 50 us of spinning
  static constexpr std::size_t kPacketsAtOnce = 256;
  static constexpr std::size_t kMostPacketsBeforeLane = 8192;  ///< of a receive buffer of some MiB

  DatagramCore& core_;
  unsigned looks_ = 0;
  unsigned looks_of_waiting_ = 0;
  bool has_news_ = false;
  bool is_woken_ = false;
  bool lane_is_used_ = false;                 ///< the last datagrams have come by the queue pair
  std::unique_ptr<std::byte[]> packet_room_;  ///< for one packet of the kernel; made with the first look
  std::vector<FromLane> from_lane_;
  std::vector<FromKernel> from_kernel_;
};

}  // namespace ringsock::rs
