// One AF_XDP socket on one queue of an interface, with its own memory of frames.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/result.h"
#include "core/base/unique_fd.h"

namespace ringsock::soft {

/// A ring of entries that this process and the kernel share; one side writes, the other reads.
template <class Entry>
struct XdpQueue {
  std::uint32_t* producer = nullptr;
  std::uint32_t* consumer = nullptr;
  Entry* entries = nullptr;
  std::uint32_t mask = 0;
  /// The index that this side writes.
  std::uint32_t mine = 0;

  [[nodiscard]] Entry& at(std::uint32_t index) const { return entries[index & mask]; }
};

/// Works in copy mode: the kernel copies between packets and frames, in the call that sends, or when a packet arrives.
/// Threads: front() and pop() one at a time; sends one at a time.
class XdpSocket {
 public:
  static constexpr std::size_t kFrameBytes = 2048;
  /// The longest packet that is received. The kernel leaves room in front of it (XDP_PACKET_HEADROOM), where the
  /// program writes the time of arrival.
  static constexpr std::size_t kMaxReceived = kFrameBytes - 256 - sizeof(std::uint64_t);

  XdpSocket() = default;
  XdpSocket(XdpSocket&& other) noexcept;
  XdpSocket& operator=(XdpSocket&&) = delete;
  XdpSocket(const XdpSocket&) = delete;
  XdpSocket& operator=(const XdpSocket&) = delete;
  ~XdpSocket() { close(); }

  /// Binds to a queue, and receives what a program redirects here. `frames`: the number of receive frames, a power of
  /// two. Errors: EINVAL no such queue; EBUSY the queue is in use, or was until a moment ago; EPERM, ENODEV, ENOMEM
  /// (also RLIMIT_MEMLOCK), EMFILE, EOPNOTSUPP, EAFNOSUPPORT.
  Status open(unsigned ifindex, unsigned queue, unsigned frames);
  /// Closes and unmaps; in a forked child only its copies of what it shares with the parent.
  void close();

  [[nodiscard]] int fd() const { return socket_.get(); }

  /// Returns the oldest packet, empty when there is none. Valid until pop().
  std::span<const std::byte> front();
  void pop();
  /// Returns when the packet of front() arrived: CLOCK_MONOTONIC, ns.
  [[nodiscard]] std::uint64_t arrival_ns() const;

  /// Returns kFrameBytes of memory for a packet to send. Returns null when all places are in use, or queued packets
  /// have not been sent.
  std::byte* place();
  /// Queues the packet in the last place().
  void queue(std::size_t bytes);
  /// Sends what is queued; leaves it to the next call when the interface cannot take it now. Adds to `dropped` the
  /// packets that the interface had no room for. Errors: ENETDOWN, ENODEV; then frames that the kernel has not looked
  /// at are taken back.
  Status flush(std::uint64_t& dropped);

  /// Returns the number of packets dropped on arrival, because they were not polled in time.
  [[nodiscard]] std::uint64_t overruns() const;

 private:
  struct Mapping {
    void* address;
    std::size_t bytes;
  };
  struct Descriptor {  ///< struct xdp_desc
    std::uint64_t address;
    std::uint32_t bytes;
    std::uint32_t options;
  };
  Status register_memory(unsigned frames);
  Status map_queues(unsigned frames);
  template <class Entry>
  Status map_queue(XdpQueue<Entry>& queue, const void* offsets, std::uint64_t page, std::uint32_t entries);
  Result<std::byte*> map(std::size_t bytes, int flags, int fd, std::uint64_t offset);
  void reclaim();
  void take_back(std::uint32_t count);

  UniqueFd socket_;
  std::vector<Mapping> mappings_;
  std::byte* memory_ = nullptr;
  std::size_t memory_bytes_ = 0;
  XdpQueue<std::uint64_t> fill_, completion_;
  XdpQueue<Descriptor> receive_, send_;
  std::uint64_t front_address_ = 0;
  std::vector<std::uint64_t> free_;  ///< free places for packets to send
  std::uint32_t left_ = 0;           ///< queued, but not sent by the last flush()
};

}  // namespace ringsock::soft
