// What a library adds to the table of VMA's Extra API.
#pragma once

#include <mellanox/vma_extra.h>
#include <pthread.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <string>

#include "core/base/result.h"
#include "core/runtime/ring_choice.h"
#include "core/verbs/pages.h"

namespace ringsock::vma {

/// Played by an object without state that lives as long as the process. Threads: any.
class ApiLibrary {
 public:
  /// Puts functions of its own into the table, which has those that all libraries have, and answers like VMA's without
  /// anything to return. Called once, before the program has the table.
  virtual void add_members(vma_api_t& /*table*/) const {}
  /// Returns whether VMA_SOCKETXTREME is set: programs may poll rings.
  [[nodiscard]] virtual bool has_events() const = 0;
  /// Which sockets share a ring that is polled, where a ring carries no more than a socket's own memory
  /// (shared_ring.h).
  struct RingSettings {
    runtime::RingLogic logic = runtime::RingLogic::per_interface;  ///< of VMA_RING_ALLOCATION_LOGIC_RX
    std::uint32_t most_rings = 0;                                  ///< VMA_RING_LIMIT_PER_INTERFACE, 0: no limit
  };
  [[nodiscard]] virtual RingSettings ring_settings() const = 0;
  /// Returns whether vma_add_ring_profile() has given this key.
  [[nodiscard]] virtual bool has_ring_profile(std::uint32_t /*key*/) const { return false; }
  /// Writes a line to the library's log.
  virtual void warn(const char* text) const = 0;
  /// Returns whether the program gets the layout of VMA 8.8.2 to 9.2.
  [[nodiscard]] virtual bool has_older_layout() const { return false; }
  /// vma_add_ring_profile() of that layout.
  virtual int add_older_ring_profile(vma_ring_type_attr* /*profile*/, int* /*key*/) const {
    errno = EOPNOTSUPP;
    return -1;
  }

  /// Adds a line of VMA's configuration before all others. A wrong line is reported. Errors: EINVAL.
  virtual Status add_rule(const std::string& line) const = 0;
  /// Decides for sockets that `thread` makes from now on. Errors: ENOMEM.
  virtual Status offload_thread(pthread_t thread, bool on) const = 0;
  /// Writes the counters of a socket to the library's log, of all sockets for 0. Errors: EINVAL there are no sockets.
  virtual Status dump_sockets(int fd, int level) const = 0;
  /// Has the buffers for receiving come from the application's functions. Errors: EINVAL it is too late; EOPNOTSUPP.
  virtual Status use_memory(const verbs::UserMemory& /*memory*/) const {
    return Error{EOPNOTSUPP, "ioctl: memory of the application"};
  }

  /// Returns whether connections may leave their rings between two calls.
  [[nodiscard]] virtual bool has_moving_connections() const = 0;
  /// recvfrom(2) for a descriptor that the library does not carry, as the application's call. Returns -1 and errno.
  virtual ssize_t receive_by_kernel(int fd, void* room, std::size_t bytes, int flags, sockaddr* from,
                                    socklen_t* from_length) const = 0;

 protected:
  ApiLibrary() = default;
  ApiLibrary(const ApiLibrary&) = default;
  ApiLibrary& operator=(const ApiLibrary&) = default;
  ~ApiLibrary() = default;
};

}  // namespace ringsock::vma
