#include "preload/relay.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstddef>

#include "core/runtime/poll_set.h"
#include "preload/route.h"

namespace ringsock::preload {

namespace {

/// One of the two ends; answers as read(2) and write(2) on a non-blocking descriptor would.
class End {
 public:
  End(int fd, bool is_ring) : fd_(fd), is_ring_(is_ring) {}
  [[nodiscard]] int fd() const { return fd_; }

  Result<ssize_t> read(void* data, std::size_t length) {
    if (is_ring_) return on_ring([&](Lookup& ring) { return runtime::receive(ring, data, length, MSG_DONTWAIT); });
    const ssize_t got = ::recv(fd_, data, length, MSG_DONTWAIT);
    return got < 0 ? Result<ssize_t>(Error::last("relay: recv")) : Result<ssize_t>(got);
  }
  Result<ssize_t> write(const void* data, std::size_t length) {
    constexpr int kFlags = MSG_DONTWAIT | MSG_NOSIGNAL;
    if (is_ring_) return on_ring([&](Lookup& ring) { return runtime::send(ring, data, length, kFlags); });
    const ssize_t sent = ::send(fd_, data, length, kFlags);
    return sent < 0 ? Result<ssize_t>(Error::last("relay: send")) : Result<ssize_t>(sent);
  }
  void shut_down(int how) {
    if (is_ring_) {
      static_cast<void>(on_ring([&](Lookup& ring) -> Result<ssize_t> {
        static_cast<void>(ring->shutdown(how));
        return 0;
      }));
    } else {
      real.shutdown(fd_, how);
    }
  }
  void reset() {
    if (is_ring_) return shut_down(SHUT_RDWR);
    const linger at_once{1, 0};
    real.setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    ::close(fd_);
  }

 private:
  Result<ssize_t> on_ring(auto body) {
    Lookup ring = fd_table().find(fd_);
    if (!ring) return Error{EBADF, "relay"};
    return body(ring);
  }

  int fd_;
  bool is_ring_;
};

/// What is on its way from one end to the other.
class Direction {
 public:
  [[nodiscard]] bool wants_to_read() const { return !ended_ && start_ == end_; }
  [[nodiscard]] bool wants_to_write() const { return start_ != end_; }
  [[nodiscard]] bool is_done() const { return told_; }

  /// Errors: those of the ends, but EAGAIN.
  Status move(End& from, End& to) {
    for (;;) {
      if (wants_to_read()) {
        auto got = from.read(bytes_.data(), bytes_.size());
        if (!got) return allow_again(got.error());
        start_ = 0;
        end_ = static_cast<std::size_t>(*got);
        ended_ = end_ == 0;
      }
      while (wants_to_write()) {
        auto sent = to.write(bytes_.data() + start_, end_ - start_);
        if (!sent) return allow_again(sent.error());
        start_ += static_cast<std::size_t>(*sent);
      }
      if (!ended_) continue;
      if (!told_) to.shut_down(SHUT_WR);
      told_ = true;
      return ok();
    }
  }

 private:
  static Status allow_again(Error error) { return error.code == EAGAIN || error.code == EINTR ? ok() : Status(error); }

  std::array<std::byte, 64 * 1024> bytes_;
  std::size_t start_ = 0;
  std::size_t end_ = 0;
  bool ended_ = false;  ///< all has been read
  bool told_ = false;   ///< all has been written, and the end
};

class Pair {
 public:
  explicit Pair(const RelayedConnection& connection)
      : ring_(connection.ring, true), kernel_(connection.kernel, false), started_(connection.at_once) {}
  [[nodiscard]] bool is_done() const { return done_; }
  [[nodiscard]] bool is_waiting() const { return !started_ && !done_; }

  /// While others have the connection, nothing of it is touched, unless the program does something with it first.
  void start_if_alone() {
    if (!is_waiting()) return;
    Lookup ring = fd_table().find(ring_.fd());
    auto* const socket = ring ? dynamic_cast<rs::StreamSocket*>(&*ring) : nullptr;
    started_ = socket == nullptr || !socket->is_shared();
    pollfd entry{kernel_.fd(), POLLIN | POLLRDHUP, 0};
    if (started_ || ::poll(&entry, 1, 0) <= 0) return;
    int written = 0;
    started_ = real.ioctl(kernel_.fd(), FIONREAD, &written) == 0 && written > 0;
    if (started_) return;
    // It has closed what it never used.
    ::close(kernel_.fd());
    done_ = true;
  }

  void add_to(std::vector<pollfd>& entries) const {
    if (is_waiting()) entries.push_back({kernel_.fd(), POLLIN, 0});
    if (done_ || !started_) return;
    add(entries, ring_.fd(), from_ring_.wants_to_read(), to_ring_.wants_to_write());
    add(entries, kernel_.fd(), to_ring_.wants_to_read(), from_ring_.wants_to_write());
  }

  void move() {
    if (done_ || !started_) return;
    const Status in = from_ring_.move(ring_, kernel_);
    const Status out = in ? to_ring_.move(kernel_, ring_) : in;
    if (!in || !out) {
      ring_.reset();
      kernel_.reset();
      done_ = true;
    } else if (from_ring_.is_done() && to_ring_.is_done()) {
      ring_.shut_down(SHUT_RDWR);
      ::close(kernel_.fd());
      done_ = true;
    }
  }

 private:
  static void add(std::vector<pollfd>& entries, int fd, bool read, bool write) {
    if (read || write) entries.push_back({fd, static_cast<short>((read ? POLLIN : 0) | (write ? POLLOUT : 0)), 0});
  }

  End ring_;
  End kernel_;
  Direction from_ring_;
  Direction to_ring_;
  bool started_;
  bool done_ = false;
};

}  // namespace

void relay(const std::vector<RelayedConnection>& connections) {
  constexpr Nanos kBetweenLooks{10'000'000};
  std::vector<Pair> pairs(connections.begin(), connections.end());
  std::vector<pollfd> entries;
  for (;;) {
    bool waiting = false;
    bool going_on = false;
    entries.clear();
    for (Pair& pair : pairs) {
      pair.start_if_alone();
      pair.move();
      pair.add_to(entries);
      waiting = waiting || pair.is_waiting();
      going_on = going_on || !pair.is_done();
    }
    if (!going_on) return;
    static_cast<void>(runtime::poll_endpoints(entries, waiting ? kBetweenLooks : Nanos::max(), nullptr));
  }
}

}  // namespace ringsock::preload
