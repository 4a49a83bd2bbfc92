// One TCP endpoint without I/O and without a clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/engine/tcp/established.h"
#include "core/engine/tcp/segment.h"
#include "core/engine/tcp/settings.h"

namespace ringsock::engine::tcp {

struct Core;

/// A TCP connection (RFC 9293) that is fed with segments and time.
///
/// The caller's loop: after any call that is not const, call next_segment() until it returns nothing, send what it
/// returned, look at take_events(), and call timers() at next_timer(). A segment that could not be sent counts as lost
/// on the way: the engine repeats it.
///
/// `now` is any clock that does not go back, the same in all calls; it starts above 0. Threads: one at a time.
class TcpConnection {
 public:
  explicit TcpConnection(const Settings& settings = {});
  ~TcpConnection();
  TcpConnection(TcpConnection&&) noexcept;
  TcpConnection& operator=(TcpConnection&&) noexcept;

  // Beginning. Exactly one of the three, before the other functions.
  /// Goes on with an established connection. Error: EINVAL for values that cannot be, for example snd_nxt beyond the
  /// queue, a scale over 14, an MSS under 48.
  Status begin(const Established& state, Nanos now);
  /// Active open: next_segment() gives the SYN. The caller chooses the initial sequence number (RFC 6528).
  void connect(Seq initial, Nanos now);
  /// Passive open from a SYN; next_segment() gives the SYN-ACK. Error: EINVAL when the segment is no plain SYN.
  Status accept(const SegmentIn& syn, Seq initial, Nanos now);

  // Network.
  /// Takes a segment of this connection. Copies its payload.
  void segment(const SegmentIn& in, Nanos now);
  /// Returns the next segment to send, and counts it as sent at `now`.
  std::optional<SegmentOut> next_segment(Nanos now);
  /// Runs the timers that have expired.
  void timers(Nanos now);
  /// Returns when timers() is to be called next; Nanos::max() when no timer runs.
  [[nodiscard]] Nanos next_timer() const;
  /// An ICMP "packet too big" told a smaller path MTU: the value for Settings::mtu_payload. `seq` is the quoted one; a
  /// number that is not in flight is ignored (RFC 5927).
  void packet_too_big(std::uint16_t mtu_payload, Seq seq, Nanos now);

  // Application.
  /// Appends bytes to the send queue. Returns how many were taken, 0 when the queue is full. Errors: EPIPE after
  /// shutdown_send() or the end, ENOTCONN before the start; a stored error is returned once by take_error() instead.
  Result<std::size_t> write(std::span<const std::byte> bytes, Nanos now);
  /// The same, and the last byte is urgent (MSG_OOB).
  Result<std::size_t> write_urgent(std::span<const std::byte> bytes, Nanos now);
  /// MSG_MORE: while true, a segment that is not full waits, at most 200 ms.
  void more_follows(bool more);
  /// Returns how many bytes write() takes now. For POLLOUT see is_writable().
  [[nodiscard]] std::size_t room() const;
  /// Linux's rule for POLLOUT: a third of the buffer is free, and the unsent bytes are under notsent_lowat.
  [[nodiscard]] bool is_writable() const;
  /// Returns how many bytes read() gives now, not counting those behind an urgent mark (SIOCINQ).
  [[nodiscard]] std::size_t readable() const;
  /// Copies received bytes and takes them from the queue. 0 when there are none: at_end() tells why. Stops at the
  /// urgent mark.
  std::size_t read(std::span<std::byte> out, Nanos now);
  /// Copies received bytes from `offset` on without taking them.
  [[nodiscard]] std::size_t peek(std::span<std::byte> out, std::size_t offset = 0) const;
  /// Takes bytes from the queue without copying them, at most readable(). The window opens as by read().
  void consume(std::size_t bytes, Nanos now);
  /// Returns whether the peer has ended its stream and everything before was read.
  [[nodiscard]] bool at_end() const;
  /// Returns whether the peer's FIN has come and everything before was read: error() concerns only sending then.
  [[nodiscard]] bool has_peers_end() const;
  /// Ends our stream behind the queued bytes (FIN).
  void shutdown_send(Nanos now);
  /// The application has gone: unread bytes lead to RST, otherwise the queued bytes and FIN are sent. Bytes that arrive
  /// later are answered by RST.
  void close(Nanos now);
  /// Resets the connection: drops both queues and sends RST when the state calls for it.
  void abort(Nanos now);
  /// TCP_QUICKACK: true sends the acknowledgements at once for a while, false delays them.
  void set_quick_ack(bool quick, Nanos now);

  // Urgent data (RFC 6093).
  [[nodiscard]] bool at_mark() const;          ///< SIOCATMARK
  [[nodiscard]] bool has_urgent_byte() const;  ///< it has arrived and was neither taken nor passed (POLLPRI)
  /// Takes the urgent byte (MSG_OOB). Errors: EINVAL without one, or inline; EAGAIN when it has not arrived.
  Result<std::byte> read_urgent(bool peek = false);

  // State.
  [[nodiscard]] State state() const;
  [[nodiscard]] std::uint8_t take_events();   ///< Event bits since the last call
  [[nodiscard]] int error() const;            ///< errno(3) value or 0: ECONNRESET, ECONNREFUSED, ETIMEDOUT, EPIPE
  int take_error();                           ///< the same, and clears it (SO_ERROR)
  [[nodiscard]] std::size_t unacked() const;  ///< bytes in the send queue, sent or not (SIOCOUTQ)
  [[nodiscard]] std::size_t unsent() const;   ///< SIOCOUTQNSD
  [[nodiscard]] const Settings& settings() const;
  /// A smaller mtu_payload, because the way or its MTU has changed: what is in flight and longer counts as lost.
  void set(const Settings& settings, Nanos now);
  [[nodiscard]] Info info() const;
  /// Returns the state for TCP_REPAIR. The connection must not be used afterwards, except to be destroyed. Bytes that
  /// arrived out of order are dropped: the peer repeats them. An unread urgent byte is lost, with its mark. Errors:
  /// EBUSY in a state other than ESTABLISHED and CLOSE_WAIT, after shutdown_send(), or while urgent bytes are to be
  /// sent.
  Result<Established> save(Nanos now);

 private:
  friend class Lending;
  std::unique_ptr<Core> core_;
};

}  // namespace ringsock::engine::tcp
