// A UDP socket's options of the library itself: those that the kernel does not know, and SO_MAX_PACING_RATE.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/result.h"
#include "libvmacompat/process/ring_profiles.h"
#include "libvmacompat/udp/datagram_queue.h"
#include "libvmacompat/udp/flows.h"
#include "libvmacompat/udp/kernel_socket.h"
#include "libvmacompat/udp/sender.h"

namespace ringsock::vma {

/// Values for which rings have no use yet are kept. Locks: set() is called with the socket's setup lock held, get() is
/// not. Threads: any.
class LibraryOptions {
 public:
  LibraryOptions(KernelSocket& kernel, Flows& flows, ReceiveQueue& queue, Sender& sender)
      : kernel_(kernel), flows_(flows), queue_(queue), sender_(sender) {}

  /// Returns whether this is such an option. Those of VMA for level IPPROTO_UDP have numbers that Linux uses for
  /// others, whose values are longer.
  static bool is_set_here(int level, int name, socklen_t length);
  static bool is_got_here(int level, int name);

  /// Errors: EINVAL, EFAULT.
  Status set(int level, int name, const void* value, socklen_t length);
  /// Errors: EINVAL too little room.
  Status get(int name, void* value, socklen_t* length) const;

 private:
  static constexpr std::size_t kMostMappedPorts = 1024;
  Status set_ring_logic(const void* value, socklen_t length);
  Status make_cyclic_buffer(const RingProfiles::Profile& profile);
  Status set_flow_tag(const void* value, socklen_t length);
  Status set_pace(const void* value, socklen_t length);
  Status set_ring_memory(const void* value, socklen_t length);
  Status map_port(bool adds, const void* value);

  KernelSocket& kernel_;
  Flows& flows_;
  ReceiveQueue& queue_;
  Sender& sender_;
  std::atomic<void*> user_data_{nullptr};
  std::atomic<bool> has_user_data_{false};
  std::atomic<std::uint32_t> flow_tag_{0};
  std::uint32_t profile_key_ = 0;
  std::optional<iovec> ring_memory_;
  std::vector<std::uint16_t> mapped_ports_;  ///< UDP_MAP_ADD, in the order of the network
};

}  // namespace ringsock::vma
