// How much the peer of a stream has read, for the case that its process ends without a word.
#pragma once

#include <atomic>
#include <cstdint>

namespace ringsock::engine {

/// What the peer tells about its reading, in our memory. Only the peer writes it.
///
/// A process that ends leaves to the kernel what it has not closed. TCP then ends a connection by a reset if bytes wait
/// unread, and in order otherwise. A process that knows that it ends (exit(3), exec(2)) says in `end` which of both it
/// is. One that is killed cannot, but all bytes that it has read from its ring are counted in `ring`, so the other end
/// knows which of its bytes were not.
struct ReadWords {
  std::atomic<std::uint64_t> ring;  ///< bytes read from the ring
  /// Twice the number of bytes, plus 1, that the peer had read of ring and overflow area when a process of it ended;
  /// plus 1 if bytes waited. 0: none has said so. kNotAccepted: nobody has accepted the connection.
  std::atomic<std::uint64_t> end;

  /// Every end of the peer is a reset, as TCP resets what a listener has given to nobody, whatever has been sent. The
  /// end that connects stores it before it connects.
  static constexpr std::uint64_t kNotAccepted = 1;
};

enum class StreamEnd : std::uint8_t {
  unknown,   ///< the peer does not count what it reads: there are no overflow areas
  in_order,  ///< the peer had read everything
  unread,    ///< bytes were left unread
};

/// Counts what is read, and says how the process ends. Threads: one reader at a time calls tell(), and one thread at a
/// time the others.
class ReadTeller {
 public:
  ReadTeller() = default;
  ReadTeller(const ReadTeller&) = delete;
  ReadTeller& operator=(const ReadTeller&) = delete;

  /// @param peers  the words in the peer's memory
  void open(ReadWords& peers) { words_ = &peers; }
  /// @param ring_bytes  read from the ring so far
  void tell(std::uint64_t ring_bytes) { words_->ring.store(ring_bytes, std::memory_order_release); }
  /// The process ends, or gives up its copy of the connection. Where another process has the connection, too, this
  /// holds until something more is read.
  /// @param all_bytes  read from the ring and the overflow area so far
  void tell_end(std::uint64_t all_bytes, bool has_unread) {
    words_->end.store((all_bytes + 1) << 1 | (has_unread ? 1 : 0), std::memory_order_release);
  }
  /// The application has accepted the connection.
  void note_accept() { words_->end.store(0, std::memory_order_release); }

 private:
  ReadWords nobodys_{};
  ReadWords* words_ = &nobodys_;
};

/// What this end knows when the peer has ended.
struct SentBytes {
  std::uint64_t in_ring;             ///< put into the peer's ring, the last of them perhaps after its end
  std::uint64_t read_from_overflow;  ///< what the peer has read of the bytes in its overflow area
  bool is_overflow_empty;
  bool was_peer_asleep;  ///< so it had read all, and what it has not read was sent after its end
};

/// Returns how the peer's end came about as it has told it itself, unknown when it has not, or has read more since.
inline StreamEnd told_end(std::uint64_t end, std::uint64_t read_from_ring, const SentBytes& sent) {
  if (end <= ReadWords::kNotAccepted || end >> 1 != ((read_from_ring + sent.read_from_overflow + 1) & UINT64_MAX >> 1))
    return StreamEnd::unknown;
  return (end & 1) != 0 ? StreamEnd::unread : StreamEnd::in_order;
}

/// Returns whether a peer that was rung in vain has got the message behind the bytes of `sent`: it woke by itself just
/// before the bell, and ended, or answered and closed the connection. A peer that ends, or closes the connection with
/// bytes unread, tells how far it has read.
inline bool has_got_next(const ReadWords& own, const SentBytes& sent) {
  const std::uint64_t read = own.ring.load(std::memory_order_acquire);
  if (read > sent.in_ring) return true;
  const StreamEnd told = told_end(own.end.load(std::memory_order_acquire), read, sent);
  return read == sent.in_ring && told == StreamEnd::unread;
}

/// Returns how the peer's end came about. The peer can write any numbers, and gets the end that it asks for.
inline StreamEnd end_of_peer(const ReadWords& own, const SentBytes& sent) {
  const std::uint64_t read = own.ring.load(std::memory_order_acquire);
  const std::uint64_t end = own.end.load(std::memory_order_acquire);
  if (end == ReadWords::kNotAccepted) return StreamEnd::unread;
  const StreamEnd told = told_end(end, read, sent);
  if (told != StreamEnd::unknown) return told;
  const bool has_read_all = static_cast<std::int64_t>(sent.in_ring - read) <= 0 && sent.is_overflow_empty;
  return has_read_all || sent.was_peer_asleep ? StreamEnd::in_order : StreamEnd::unread;
}

}  // namespace ringsock::engine
