#include "tests/packetdrill/pipes.h"

#include <algorithm>
#include <cerrno>

namespace ringsock::packetdrill {

void Pipes::add(int read_fd, int write_fd) {
  const auto pipe = std::make_shared<Pipe>();
  ends_[read_fd] = {pipe, false};
  ends_[write_fd] = {pipe, true};
}

void Pipes::close(int fd) {
  const auto found = ends_.find(fd);
  if (found == ends_.end()) return;
  (found->second.writes ? found->second.pipe->write_end : found->second.pipe->read_end) = false;
  ends_.erase(found);
}

Result<std::deque<std::byte>> Pipes::take(int fd, std::size_t most) {
  const auto found = ends_.find(fd);
  if (found == ends_.end() || found->second.writes) return Error{EBADF, "pipe: read"};
  Pipe& pipe = *found->second.pipe;
  if (pipe.bytes.empty() && pipe.write_end) return Error{EAGAIN, "pipe: read"};
  const auto count = static_cast<std::ptrdiff_t>(std::min(most, pipe.bytes.size()));
  std::deque<std::byte> out(pipe.bytes.begin(), pipe.bytes.begin() + count);
  pipe.bytes.erase(pipe.bytes.begin(), pipe.bytes.begin() + count);
  return out;
}

void Pipes::put_back(int fd, const std::deque<std::byte>& bytes) {
  Pipe& pipe = *ends_.at(fd).pipe;
  pipe.bytes.insert(pipe.bytes.begin(), bytes.begin(), bytes.end());
}

Result<std::size_t> Pipes::room(int fd) const {
  const auto found = ends_.find(fd);
  if (found == ends_.end() || !found->second.writes) return Error{EBADF, "pipe: write"};
  if (!found->second.pipe->read_end) return Error{EPIPE, "pipe: write"};
  return Pipe::kMostBytes - std::min(Pipe::kMostBytes, found->second.pipe->bytes.size());
}

void Pipes::append(int fd, const std::byte* bytes, std::size_t count) {
  auto& all = ends_.at(fd).pipe->bytes;
  all.insert(all.end(), bytes, bytes + count);
}

}  // namespace ringsock::packetdrill
