// SocketXtreme for streams: what a program that polls a ring learns of the sockets of that ring that have news by more
// ways than packets.
#pragma once

#include <mellanox/vma_extra.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/socket_address.h"
#include "core/extra_api/lent_packets.h"
#include "core/runtime/endpoint.h"
#include "core/runtime/ring_choice.h"

namespace ringsock::vma {

class PolledStreams;
class SharedRing;

/// Played by a part of such a socket. Threads: any.
class PolledStream {
 public:
  /// The longest packet: vma_packet_desc_t::total_len has 16 bits.
  static constexpr std::size_t kMostBytes = UINT16_MAX;
  /// A packet of so many bytes gets no further buffer.
  static constexpr std::size_t kEnoughBytes = 32'768;

  /// Fills in the next completion. Returns false when the program knows everything by now. Called without locks.
  virtual bool take_event(vma_completion_t& out) = 0;
  /// The socket. It leaves all PolledStreams before it is destroyed.
  virtual runtime::Endpoint& endpoint() noexcept = 0;

  // -- in a SharedRing
  /// The EPOLL* conditions whose changes are news.
  [[nodiscard]] virtual std::uint32_t wished_events() const noexcept { return 0; }
  /// Returns the ring that it is to have. `by_default`: unless it has a logic of its own.
  [[nodiscard]] virtual runtime::RingKey ring_key(runtime::RingLogic /*by_default*/) { return {}; }
  /// Returns the ring that it has; null: none.
  [[nodiscard]] virtual SharedRing* shared_ring() noexcept { return nullptr; }
  /// The ring has it from now on. `has_called_connect`: by connect(2), which may be under way. Returns false when it
  /// has a ring already.
  virtual bool join(SharedRing& /*ring*/, bool /*has_called_connect*/) noexcept { return false; }

 protected:
  PolledStream() = default;
  PolledStream(const PolledStream&) = delete;
  PolledStream& operator=(const PolledStream&) = delete;
  ~PolledStream() = default;
  /// Takes the stream from whichever list it is in. Called last, when nobody has a reference to the socket any more.
  void unlist() noexcept;
  /// Called in a forked child: the list is the parent's.
  void forget_list() noexcept { listed_in_.store(nullptr, std::memory_order_relaxed); }

 private:
  friend class PolledStreams;
  std::atomic<PolledStreams*> listed_in_{nullptr};  ///< null: it is in no list
};

/// Tells where a completion comes from; an address other than IPv4's has no room there.
inline void tell_source(const SocketAddress& peer, sockaddr_in& out) noexcept {
  const SocketAddress name = peer.unmapped();
  if (name.family() == AF_INET) out = name.in4();
}

/// Makes a packet of what a stream lends. Returns its bytes, 0 when nothing can be lent now.
/// @param lend_next  lends at most so many bytes, as a LentPacket; null: no more now
template <class LendNext>
std::size_t lend_packet(vma_packet_desc_t& out, LendNext lend_next) {
  LentPacket* last = nullptr;
  std::size_t bytes = 0;
  while (out.num_bufs < LentPackets::kMostInList && bytes < PolledStream::kEnoughBytes) {
    LentPacket* const next = lend_next(PolledStream::kMostBytes - bytes);
    if (next == nullptr) break;
    if (last != nullptr) {
      LentPackets::chain(*last, *next);
    } else {
      out.buff_lst = &next->buffer;
    }
    last = next;
    bytes += next->buffer.len;
    ++out.num_bufs;
  }
  out.total_len = static_cast<std::uint16_t>(bytes);
  return bytes;
}

/// The streams of one ring that have news. Threads: any; meant for one that polls.
class PolledStreams {
 public:
  PolledStreams() = default;
  PolledStreams(const PolledStreams&) = delete;
  PolledStreams& operator=(const PolledStreams&) = delete;

  // -- for streams
  /// The stream has news. Does nothing while it is listed already, or without memory for its place: the next news lists
  /// it. A leaf lock is taken.
  void list(PolledStream& stream) noexcept;
  /// Takes the stream from the list.
  void unlist(PolledStream& stream) noexcept;
  /// The program is told once, by these EPOLL* bits, of a socket that is the kernel's now, unless it has closed `fd` by
  /// then. Lost without memory.
  void tell_of_kernels(int fd, std::uint64_t user_data, std::uint32_t events) noexcept;

  // -- for programs that poll the ring
  /// Fills in completions, at most as many as there is room. Called without locks.
  std::size_t collect(std::span<vma_completion_t> out);
  /// Returns whether collect() would look at a stream.
  [[nodiscard]] bool are_any_listed() noexcept;

 protected:
  ~PolledStreams() = default;
  /// With lock_.
  void list_locked(PolledStream& stream) noexcept;
  void unlist_locked(PolledStream& stream) noexcept;
  [[nodiscard]] bool is_list_empty() const { return ready_.empty(); }
  void forget_kernels() { left_.clear(); }
  /// Returns whether the program has not been told of all that the kernel has got. With lock_.
  [[nodiscard]] bool has_kernels_to_tell() const { return !left_.empty(); }

  Mutex lock_;

 private:
  struct Left {
    int fd;
    ino_t inode;  ///< the number may be another socket's by now
    std::uint64_t user_data;
    std::uint32_t events;
  };
  struct First {
    runtime::Ref socket{};
    PolledStream* stream = nullptr;
  };
  First take_first();
  std::size_t tell_left(std::span<vma_completion_t> out);
  [[nodiscard]] std::size_t listed();

  // With lock_:
  std::deque<PolledStream*> ready_;
  std::vector<Left> left_;

  std::atomic<bool> has_ready_{false};  ///< a hint for collect(): ready_ or left_ is not empty
};

}  // namespace ringsock::vma
