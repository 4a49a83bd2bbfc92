// riomap(3), riounmap(3) and riowrite(3) of a stream socket.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "librsocket/cm_watch.h"
#include "librsocket/iomap.h"
#include "librsocket/stream_core.h"

namespace ringsock::rs {

/// Maps buffers for the peer and writes into the peer's buffers. Maps are guarded by setup_lock, writes by send_lock;
/// both are taken here.
class DirectPlacement final : public StreamPart {
 public:
  DirectPlacement(StreamSocket& socket, StreamCore& core) : StreamPart(socket, core) {}

  Result<off_t> map_buffer(void* data, std::size_t length, int prot, off_t offset);
  Status unmap_buffer(void* data, std::size_t length);
  /// Makes one attempt to write [offset, offset + size). Returns the bytes written, 0 when no buffer is mapped there.
  /// Error: EAGAIN the queue is full.
  Result<std::size_t> write(const std::byte* data, std::size_t size, std::uint64_t offset);
  /// Returns whether anything was written. send_lock must be held.
  [[nodiscard]] bool has_written() const { return has_written_; }

  /// Makes the service thread continue a direct write that waits for the peer's help, and the messages behind it,
  /// whenever the peer's doorbell rings, so that the application may sleep. Called without locks.
  void push_in_background();
  /// What push_in_background() has started, for the caller to stop it without locks, and to close the descriptor then.
  struct Pushes {
    UniqueFd fd;
    std::shared_ptr<CmWatch> watch;
  };
  /// setup_lock must be held.
  [[nodiscard]] Pushes take_pushes() { return {std::move(push_fd_), std::move(push_watch_)}; }
  /// In a forked child, which does not have the service thread.
  void forget_pushes();
  /// Drops the mapped buffers before the connection.
  void reset() { iomap_.reset(); }
  /// Gives the mapped buffers up without touching them.
  void leave_to_parent() { [[maybe_unused]] const void* const lost = iomap_.release(); }

 private:
  Result<std::size_t> post(const std::byte* data, std::size_t size, std::uint64_t offset);
  bool watch_pushes();
  void serve_pushes();  ///< on the service thread, without locks

  std::unique_ptr<IoMap> iomap_;         ///< destroyed before the connection
  std::shared_ptr<CmWatch> push_watch_;  ///< while has_direct_under_way()
  UniqueFd push_fd_;                     ///< the descriptor that it watches
  bool has_written_ = false;
};

}  // namespace ringsock::rs
