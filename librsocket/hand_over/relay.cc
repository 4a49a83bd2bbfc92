#include "librsocket/hand_over/relay.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "core/base/log.h"
#include "core/base/own_duplicate.h"
#include "core/base/rare_calls.h"
#include "core/base/unique_fd.h"
#include "core/poll/poll_set.h"
#include "core/poll/socket_calls.h"
#include "core/runtime/fd_table.h"
#include "librsocket/family_record.h"
#include "librsocket/hand_over/door.h"
#include "librsocket/stream_socket.h"

namespace ringsock::rs {

namespace {

using runtime::fd_table;
using runtime::Lookup;

/// Returns the connection on a ring that a look-up has found, or null.
StreamSocket* ring_of(const Lookup& found) { return found ? find_stream(*found) : nullptr; }

/// One of the two ends. It answers as read(2) and write(2) do on a non-blocking descriptor.
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
  /// Turns the ring's connection, which another process uses, into a kernel socket that both processes have. Returns
  /// false when that fails.
  bool join_its_user() {
    Lookup ring = fd_table().find(fd_);
    auto* const connection = ring_of(ring);
    if (connection == nullptr) return false;
    ring.pin();
    is_ring_ = !follow(*connection) || !connection->endpoint().has_left_to_kernel();
    is_guest_ = !is_ring_;
    return is_guest_;
  }
  /// Returns whether another process uses the connection, too. That process then reads the input and ends the
  /// connection.
  [[nodiscard]] bool is_guest() const { return is_guest_; }
  /// Returns a duplicate of the ring's link, which hangs up once no process has the other end of the connection. Empty
  /// for a connection in the kernel, or without a free number.
  [[nodiscard]] UniqueFd link() const { return is_ring_ ? own_duplicate(fd_) : UniqueFd(); }
  /// Returns whether the ring's connection has been reset. Looks for that.
  [[nodiscard]] bool is_reset() const {
    Lookup ring = fd_table().find(fd_);
    auto* const connection = ring_of(ring);
    if (connection == nullptr || !connection->is_connected()) return false;
    ring.pin();
    connection->progress().look_for_reset();
    return connection->core().connection->ends().failure() != 0;
  }
  void shut_down(int how) {
    if (is_guest_) return;
    if (is_ring_) {
      static_cast<void>(on_ring([&](Lookup& ring) -> Result<ssize_t> {
        static_cast<void>(ring->shutdown(how));
        return 0;
      }));
    } else {
      ::shutdown(fd_, how);
    }
  }
  void reset() {
    if (is_guest_) return;
    if (is_ring_) return reset_ring();
    const linger at_once{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    ::close(fd_);
  }

 private:
  void reset_ring() {
    Lookup ring = fd_table().find(fd_);
    if (auto* const connection = ring_of(ring)) {
      ring.pin();
      connection->numbers().reset();
    }
  }
  Result<ssize_t> on_ring(auto body) {
    Lookup ring = fd_table().find(fd_);
    if (!ring) return Error{EBADF, "relay"};
    return body(ring);
  }

  int fd_;
  bool is_ring_;
  bool is_guest_ = false;
};

/// The bytes on their way from one end to the other.
class Direction {
 public:
  [[nodiscard]] bool wants_to_read() const { return !ended_ && start_ == end_; }
  [[nodiscard]] bool wants_to_write() const { return start_ != end_; }
  [[nodiscard]] bool is_done() const { return told_; }
  [[nodiscard]] std::uint64_t moved() const { return moved_; }

  /// Moves bytes until one end would block. Errors: those of the ends, except EAGAIN.
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
        moved_ += static_cast<std::uint64_t>(*sent);
      }
      if (!ended_) continue;
      if (!told_) to.shut_down(SHUT_WR);
      told_ = true;
      return ok();
    }
  }

 private:
  static Status allow_again(Error error) { return error.code == EAGAIN || error.code == EINTR ? ok() : Status(error); }

  std::array<std::byte, std::size_t{64} * 1024> bytes_;
  std::size_t start_ = 0;
  std::size_t end_ = 0;
  std::uint64_t moved_ = 0;  ///< bytes
  bool ended_ = false;       ///< all bytes have been read
  bool told_ = false;        ///< all bytes, and the end, have been passed on
};

/// The processes that have the connection on the ring, and may still ask for its kernel socket.
class Family {
 public:
  explicit Family(const RelayedConnection& connection)
      : socket_(connection.theirs), is_for_nobody_(connection.nobody_asks) {
    if (connection.at_once) static_cast<void>(begin(connection.ring));
  }
  /// Makes this process the connection's user. Returns false when another process is the user.
  bool begin(int ring) {
    Lookup connection = fd_table().find(ring);
    auto* const stream = ring_of(connection);
    const bool is_ours = stream != nullptr && stream->inheritance().claim_handed_on();
    if (socket_ < 0) return is_ours;
    if (is_ours && !is_for_nobody_) record_ = stream->inheritance().family();
    last_seen_ = monotonic_now();
    has_begun_ = true;
    look();
    return is_ours;
  }
  /// Closes the relay's copy of the socket, which would hide the end of the stream.
  void nobody_asks() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }
  [[nodiscard]] bool may_ask() const { return socket_ >= 0 && has_begun_; }

  /// Closes the copy once no process is left that could ask.
  void look() {
    if (!may_ask()) return;
    constexpr auto kToBeBorn = std::chrono::seconds(1);
    const Nanos now = monotonic_now();
    if (record_ != nullptr && record_->others_live(false)) {
      last_seen_ = now;
    } else if (record_ == nullptr || !record_->others_live(true) || now > last_seen_ + kToBeBorn) {
      nobody_asks();
    }
  }

  void let_in(const Door& door) const {
    if (may_ask()) door.announce(*record_);
  }
  void answer(const Door::Caller& caller) const {
    if (may_ask() && caller.id == record_->id) static_cast<void>(caller.send(record_->proof, socket_));
  }

 private:
  int socket_;  ///< -1: nobody asks any more
  const bool is_for_nobody_;
  bool has_begun_ = false;
  FamilyRecord* record_ = nullptr;
  Nanos last_seen_ = monotonic_now();
};

class Pair {
 public:
  explicit Pair(const RelayedConnection& connection)
      : ring_(connection.ring, true),
        kernel_(connection.kernel, false),
        started_(connection.at_once),
        maker_(connection.maker),
        family(connection) {}
  [[nodiscard]] bool is_done() const { return done_; }
  [[nodiscard]] bool is_waiting() const { return !started_ && !done_; }
  /// Returns whether it may start soon.
  [[nodiscard]] bool has_unread() const { return is_waiting() && unread_since_.has_value(); }

  /// Starts when no other process has the connection, or when the program has written or closed its socket. Until then
  /// the ring is not touched.
  void start_if_alone() {
    if (!is_waiting()) return;
    Lookup ring = fd_table().find(ring_.fd());
    auto* const socket = ring_of(ring);
    started_ = socket == nullptr || is_alone_now(socket->inheritance());
    if (started_) return family.nobody_asks();
    const bool has_ended = !is_alive(maker_);
    if (has_written() || is_wanted_by_program(*socket)) return begin();
    if (has_ended) family.nobody_asks();
    pollfd entry{kernel_.fd(), POLLRDHUP, 0};
    if (::poll(&entry, 1, 0) <= 0) return;
    if (has_written()) return begin();
    // The program has closed the connection without using it.
    ::close(kernel_.fd());
    done_ = true;
  }

  void add_to(std::vector<pollfd>& entries) const {
    if (is_waiting()) entries.push_back({kernel_.fd(), POLLIN, 0});
    if (done_ || !started_) return;
    add(entries, ring_.fd(), from_ring_.wants_to_read() && !ring_.is_guest(), to_ring_.wants_to_write());
    add(entries, kernel_.fd(), to_ring_.wants_to_read(), from_ring_.wants_to_write());
    if (link_) entries.push_back({link_.get(), 0, 0});  // for POLLHUP
  }

  void move() {
    if (done_ || !started_) return;
    const Status in = ring_.is_guest() ? ok() : from_ring_.move(ring_, kernel_);
    const Status out = in ? to_ring_.move(kernel_, ring_) : in;
    if (!in || !out) {
      reset();
    } else if ((from_ring_.is_done() || ring_.is_guest()) && to_ring_.is_done()) {
      end();
    } else if (from_ring_.is_done()) {
      end_with_ring();
    }
  }
  [[nodiscard]] std::uint64_t moved() const { return from_ring_.moved() + to_ring_.moved(); }

  /// Ends the connection for both sides, if this relay has it.
  void end() {
    if (done_ || !started_) return;
    ring_.shut_down(SHUT_RDWR);
    ::close(kernel_.fd());
    if (ring_.is_guest()) ::close(ring_.fd());
    done_ = true;
  }

 private:
  void reset() {
    ring_.reset();
    kernel_.reset();
    done_ = true;
  }
  /// Ends the connection once nobody has the other end of the ring, although the program has not closed its socket, and
  /// may never do so: a socket in TCP_REPAIR ends without a word. The kernel answers what still comes by a reset, and
  /// waits for the program's end as long as for that of any closed socket (tcp_fin_timeout, tcp(7)).
  void end_with_ring() {
    if (!link_) link_ = ring_.link();
    pollfd entry{link_.get(), 0, 0};
    if (::poll(&entry, 1, 0) <= 0) return;
    link_.reset();
    ring_.is_reset() || to_ring_.wants_to_write() ? reset() : end();
  }
  /// Returns whether bytes, or the end, have waited for a while, and the owner has not used the connection since the
  /// fork: it has left it to the program, which reads. An owner that comes later gets the kernel socket, and the bytes
  /// if the program has not taken them.
  bool is_wanted_by_program(const StreamSocket& ring) {
    constexpr auto kPatience = std::chrono::milliseconds(200);
    const Nanos now = monotonic_now();
    if (!ring.inheritance().is_left_unread()) {
      unread_since_.reset();
    } else if (!unread_since_) {
      unread_since_ = now;
    }
    return unread_since_ && now - *unread_since_ >= kPatience;
  }
  [[nodiscard]] bool has_written() const {
    int written = 0;
    return ::ioctl(kernel_.fd(), FIONREAD, &written) == 0 && written > 0;
  }
  void begin() {
    started_ = true;
    if (family.begin(ring_.fd())) return;
    // The program's bytes are sent. The connection's user reads what the peer sends.
    if (!ring_.join_its_user()) log_info("relay: another process uses the connection: a program's bytes are lost");
  }
  static void add(std::vector<pollfd>& entries, int fd, bool read, bool write) {
    if (read || write) entries.push_back({fd, static_cast<short>((read ? POLLIN : 0) | (write ? POLLOUT : 0)), 0});
  }

  End ring_;
  End kernel_;
  UniqueFd link_;  ///< of the ring, once its peer has ended its stream
  Direction from_ring_;
  Direction to_ring_;
  bool started_;
  pid_t maker_;  ///< while this process lives, its program may have the kernel socket
  bool done_ = false;
  std::optional<Nanos> unread_since_;

 public:
  Family family;
};

/// SIGTERM, which does not end a relay at once: service managers send it to all processes of a service, and the program
/// may still have something to say.
class EndOnRequest {
 public:
  EndOnRequest() {
    if (!is_permitted(RareCall::signalfd4)) return;
    sigset_t request;
    sigemptyset(&request);
    sigaddset(&request, SIGTERM);
    request_ = UniqueFd(::signalfd(-1, &request, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  /// Returns the descriptor that becomes readable when the signal comes, or -1.
  [[nodiscard]] int fd() const { return request_.get(); }
  [[nodiscard]] Nanos patience() const { return has_come_ ? kLastWords : Nanos::max(); }
  /// Called when the descriptor is readable.
  void take() {
    signalfd_siginfo signal;
    if (::read(request_.get(), &signal, sizeof signal) <= 0) return;
    has_come_ = true;
    quiet_since_ = monotonic_now();
  }
  /// Returns whether the relay has to end.
  /// @param moved the bytes that it has moved by now
  bool is_due(std::uint64_t moved) {
    if (!has_come_) return false;
    const Nanos now = monotonic_now();
    if (std::exchange(moved_, moved) != moved) quiet_since_ = now;
    return now - quiet_since_ >= kLastWords;
  }

 private:
  static constexpr Nanos kLastWords = std::chrono::seconds(1);
  UniqueFd request_;
  bool has_come_ = false;
  std::uint64_t moved_ = 0;
  Nanos quiet_since_ = Nanos::zero();
};

class Relay {
 public:
  explicit Relay(const std::vector<RelayedConnection>& connections)
      : pairs_(connections.begin(), connections.end()), started_at_(monotonic_now()) {
    for (const Pair& pair : pairs_) let_in(pair);
  }

  void run(UniqueFd begun) {
    std::vector<pollfd> entries;
    bool goes_on = step(entries);
    [[maybe_unused]] const ssize_t told = ::write(begun.get(), "", 1);
    begun.reset();
    for (; goes_on; goes_on = step(entries)) {
      static_cast<void>(runtime::poll_endpoints(entries, patience(), nullptr));
      if (!entries.empty() && entries.back().fd == request_.fd() && entries.back().revents != 0) request_.take();
    }
  }

 private:
  /// Returns the time until the other processes that have the connections are looked at again.
  [[nodiscard]] Nanos patience() const {
    constexpr Nanos kSoon = std::chrono::milliseconds(10);
    constexpr Nanos kLater = std::chrono::milliseconds(100);
    constexpr Nanos kLong = std::chrono::seconds(5);
    // What has not changed for long will not change soon: 250 ms after 8 s.
    const Nanos age = monotonic_now() - started_at_;
    if (waits_) return has_unread_ ? kSoon : std::clamp<Nanos>(age / 32, kSoon, std::chrono::milliseconds(250));
    if (!may_ask_) return request_.patience();
    return age < kLong ? kSoon : kLater;
  }

  /// @return false when all connections have ended
  bool step(std::vector<pollfd>& entries) {
    bool goes_on = waits_ = has_unread_ = may_ask_ = false;
    entries.clear();
    if (door_) answer();
    for (Pair& pair : pairs_) {
      const bool waited = pair.is_waiting();
      pair.start_if_alone();
      if (waited) let_in(pair);
      pair.move();
      pair.add_to(entries);
      pair.family.look();
      waits_ = waits_ || pair.is_waiting();
      has_unread_ = has_unread_ || pair.has_unread();
      may_ask_ = may_ask_ || pair.family.may_ask();
      goes_on = goes_on || !pair.is_done();
    }
    if (door_) entries.push_back({door_->fd(), POLLIN, 0});
    if (request_.fd() >= 0) entries.push_back({request_.fd(), POLLIN, 0});
    return (goes_on || may_ask_) && !ends_on_request();
  }

  bool ends_on_request() {
    std::uint64_t moved = 0;
    for (const Pair& pair : pairs_) moved += pair.moved();
    if (!request_.is_due(moved)) return false;
    for (Pair& pair : pairs_) pair.end();
    return true;
  }

  void let_in(const Pair& pair) {
    if (!pair.family.may_ask()) return;
    if (!door_) {
      auto door = take_own_door();
      if (!door) return;
      door_ = *std::move(door);
    }
    pair.family.let_in(*door_);
  }

  void answer() {
    while (const auto caller = door_->next()) {
      for (const Pair& pair : pairs_) pair.family.answer(*caller);
    }
  }

  std::vector<Pair> pairs_;
  std::optional<Door> door_;
  EndOnRequest request_;
  const Nanos started_at_;
  bool waits_ = false;
  bool has_unread_ = false;
  bool may_ask_ = false;
};

}  // namespace

void relay(const std::vector<RelayedConnection>& connections, UniqueFd begun) {
  Relay(connections).run(std::move(begun));
}

}  // namespace ringsock::rs
