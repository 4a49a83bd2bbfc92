// Pipes of the host: what splice(2) moves bytes through.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>

#include "core/base/result.h"

namespace ringsock::packetdrill {

struct Pipe {
  static constexpr std::size_t kMostBytes = 65'536;
  std::deque<std::byte> bytes;
  bool read_end = true, write_end = true;  ///< are open
};

/// The ends of all pipes, by descriptor.
class Pipes {
 public:
  void add(int read_fd, int write_fd);
  [[nodiscard]] bool holds(int fd) const { return ends_.count(fd) != 0; }
  void close(int fd);
  /// Returns the bytes at the front, `most` at most. Errors: EBADF: not a read end. EAGAIN: nothing there, although
  /// the other end is open.
  [[nodiscard]] Result<std::deque<std::byte>> take(int fd, std::size_t most);
  /// Puts bytes back that take() has returned.
  void put_back(int fd, const std::deque<std::byte>& bytes);
  /// Returns how many bytes the pipe takes. Errors: EBADF: not a write end. EPIPE: the read end is closed.
  [[nodiscard]] Result<std::size_t> room(int fd) const;
  void append(int fd, const std::byte* bytes, std::size_t count);

 private:
  struct End {
    std::shared_ptr<Pipe> pipe;
    bool writes;
  };
  std::map<int, End> ends_;
};

}  // namespace ringsock::packetdrill
