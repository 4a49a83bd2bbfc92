// One AF_XDP socket on one queue of an interface, with its own memory of frames.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/result.h"
#include "core/base/unique_fd.h"

namespace ringsock::soft {

/// A ring of entries that this process and the kernel share; one of them writes.
template <class Entry>
struct XdpQueue {
  std::uint32_t* producer = nullptr;
  std::uint32_t* consumer = nullptr;
  Entry* entries = nullptr;
  std::uint32_t mask = 0;
  /// Of the index that this side writes.
  std::uint32_t mine = 0;

  [[nodiscard]] Entry& at(std::uint32_t index) const { return entries[index & mask]; }
};

/// In copy mode: the kernel copies between packets and frames, within the call that sends, or when a packet arrives.
/// Threads: front() and pop() one at a time; of those that send, one at a time.
class XdpSocket {
 public:
  static constexpr std::size_t kFrameBytes = 2048;
  /// The longest packet that is received: the kernel keeps some room in front (XDP_PACKET_HEADROOM), and the program
  /// writes the time there.
  static constexpr std::size_t kMaxReceived = kFrameBytes - 256 - sizeof(std::uint64_t);

  XdpSocket() = default;
  XdpSocket(XdpSocket&& other) noexcept;
  XdpSocket& operator=(XdpSocket&&) = delete;
  XdpSocket(const XdpSocket&) = delete;
  XdpSocket& operator=(const XdpSocket&) = delete;
  ~XdpSocket() { close(); }

  /// Bound to a queue, and receives what a program sends here. `frames`: to receive into, a power of two.
  /// Errors: EINVAL no such queue; EBUSY somebody has it, or had it until a moment ago; EPERM, ENODEV, ENOMEM (also
  /// RLIMIT_MEMLOCK), EMFILE, EOPNOTSUPP, EAFNOSUPPORT.
  Status open(unsigned ifindex, unsigned queue, unsigned frames);
  /// Closes and unmaps; of what is shared with a parent, the copies.
  void close();

  [[nodiscard]] int fd() const { return socket_.get(); }

  /// The oldest packet; empty when there is none. Valid until pop().
  std::span<const std::byte> front();
  void pop();
  /// When front() came: CLOCK_MONOTONIC, ns.
  [[nodiscard]] std::uint64_t arrival_ns() const;

  /// A place of kFrameBytes for a packet to be sent; null: all are under way, or what was queued before has not been
  /// sent.
  std::byte* place();
  /// Queues what is in the last place().
  void queue(std::size_t bytes);
  /// Sends what is queued, or leaves it to the next call where the interface cannot take it now. `dropped` counts what
  /// the interface had no room for. Errors, and nothing is queued any more: ENETDOWN, ENODEV.
  Status flush(std::uint64_t& dropped);

  /// Dropped on arrival: nobody polled in time.
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
  std::vector<std::uint64_t> free_;  ///< places to send from
  std::uint32_t left_ = 0;           ///< queued, and not taken by the last flush()
};

}  // namespace ringsock::soft
