// The overflow areas of a connection: bytes for which the peer's ring has no room or no credits.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/engine/stream/overflow.h"
#include "core/verbs/device.h"
#include "core/wire/rs_connect.h"
#include "librsocket/io_vector.h"
#include "librsocket/overflow_budget.h"

namespace ringsock::rs {

/// Both directions: the area in our memory, which the peer fills, and the area in the peer's memory, which we fill. The
/// order of bytes and the waking are in core/engine/stream/overflow.h. Without open() nothing is ever sent or readable.
///
/// Between two users both directions are limited by the budget of the peer's user (overflow_budget.h): the part of the
/// peer's area that we write to, and the bytes that we read of ours before we give its pages back.
///
/// Where a function says so, the caller must send the peer RsControl::look.
///
/// Threads: one sender at a time, one reader at a time; look() and release() by one thread at a time. in_use(),
/// has_room(), is_empty(), readable(), appends() and gives_back_at() by any thread.
class OverflowAreas {
 public:
  // -- making a connection
  /// Offers the peer our area. `words` are the kRsOverflowWordBytes in front of the first receive buffer.
  void offer(std::byte* words, std::span<std::byte> area);
  /// Returns what the peer is told of our area; a magic of 0 if there is none.
  [[nodiscard]] wire::RsOverflow offered() const;
  void take_offer(const wire::RsConnect& peer, const std::optional<wire::RsOverflow>& overflow);
  /// Begins to use both areas, if both ends have offered one; only ours if the peer has closed its end already.
  /// @param limit       our unread bytes at most
  /// @param other_user  the peer's user, if it is not our own
  void open(verbs::Device& device, ibv_qp& qp, std::uint32_t limit, std::optional<uid_t> other_user);
  [[nodiscard]] bool are_open() const { return in_.is_open(); }
  /// Returns whether either area has ever had bytes in it.
  [[nodiscard]] bool were_used() const;
  /// Ends the use of both areas by this process, which has used the connection last. The device may keep their memory
  /// for another connection.
  void close(verbs::Device& device, ibv_qp& qp);

  // -- sending
  [[nodiscard]] bool in_use() const { return out_.in_use(); }
  [[nodiscard]] bool has_room() const { return out_.has_room(); }
  [[nodiscard]] bool is_empty() const { return out_.is_empty(); }
  /// Returns the bytes in the peer's area that the peer has not read. Threads: any; the answer may be outdated.
  [[nodiscard]] std::uint64_t waiting() const { return out_.waiting(); }
  /// Returns whether messages may be sent again, because the peer has read all. Error: EPROTO.
  Result<bool> leave() { return out_.leave(); }
  struct Appended {
    std::size_t bytes = 0;
    bool must_tell = false;  ///< the peer must look
  };
  /// Appends as much of `data` as there is room for in an open area, and advances it. `last_message` is the number of
  /// the data messages before these bytes. Error: EPROTO.
  Result<Appended> append(IoCursor& data, std::uint16_t last_message);
  /// Returns the number of calls of append() that did something, which wraps.
  [[nodiscard]] std::uint32_t appends() const { return appends_.load(std::memory_order_relaxed); }

  // -- reading
  [[nodiscard]] std::uint64_t readable() const { return in_.readable(); }
  /// Looks for new bytes behind `arrived` data messages. Returns whether there are some. Error: EPROTO.
  Result<bool> look(std::uint16_t arrived);
  /// Makes new bytes readable, as many as the peer may have there. Call it after look() and, if is_limited(), after
  /// consume(). Returns whether the peer must look.
  /// @param is_alone  the peer has ended
  bool release(bool is_alone = false);
  [[nodiscard]] bool is_limited() const { return charge_in_.is_limited(); }
  /// Copies up to `most` <= readable() bytes, which stay. Returns the bytes copied.
  std::size_t copy_to(IoCursor& out, std::uint64_t most) const;
  /// Frees the oldest `bytes`. Returns whether the peer must look.
  bool consume(std::uint64_t bytes);

  // -- what either end says of its reading (core/engine/stream/read_words.h); without open() nothing
  /// Counts the bytes that were read from our ring, for the peer. For the reader, after each read.
  void tell_read(std::uint64_t ring_bytes) { reads_.tell(ring_bytes); }
  /// Tells the peer that this process ends, or gives up its copy. Threads: any.
  /// @param has_unread  whether bytes wait in the ring; those in the area are known here
  void tell_end(std::uint64_t ring_bytes, bool has_unread);
  enum class Acceptance : std::uint8_t {
    expected,  ///< of the peer's application; for the end that connects, before it does
    awaited,   ///< of this end's application, for the end that answers, before it does
    done,      ///< by this end's application
  };
  /// Until the application has accepted the connection, every end of its process is a reset, that by a signal, too.
  void note(Acceptance now);
  /// Returns how the peer's end came about, after it has ended.
  /// @param sent_bytes  into the peer's ring
  /// @param was_asleep  engine::SentBytes::was_peer_asleep
  [[nodiscard]] engine::StreamEnd end_of_peer(std::uint64_t sent_bytes, bool was_asleep) const;
  /// Returns whether a peer that was rung in vain has got the message behind `sent_bytes`, see engine::has_got_next().
  [[nodiscard]] bool has_peer_got_next(std::uint64_t sent_bytes) const;

  // -- another process that has a copy by fork(2). Nobody else uses the areas. Error: EPROTO for impossible values.
  struct Saved {
    engine::OverflowWriter::Saved out;
    engine::OverflowReader::Saved in;
    std::uint32_t appends;
  };
  [[nodiscard]] Saved save() const { return {out_.save(), in_.save(), appends()}; }
  Status restore(const Saved& saved);
  /// Returns whether no process has gone further than `saved`, as far as the peer can see.
  [[nodiscard]] bool is_untouched_since(const Saved& saved) const {
    return out_.is_untouched_since(saved.out) && in_.is_untouched_since(saved.in);
  }

  /// Returns when give_back() is due, Nanos::max() for never.
  [[nodiscard]] Nanos gives_back_at() const { return gives_back_at_.load(std::memory_order_relaxed); }
  void give_back_at(Nanos when) { gives_back_at_.store(when, std::memory_order_relaxed); }
  /// Gives the memory of the areas to the kernel if they are not used. With the locks of sender, reader and release().
  /// Returns whether the peer must look.
  bool give_back();
  /// Another process has the connection now, and charges what it uses.
  void leave_charges();

 private:
  void take_kept(std::size_t own, std::size_t peers);
  [[nodiscard]] bool may_be_kept() const;
  std::optional<std::size_t> keep(verbs::Device& device, ibv_qp& qp);
  [[nodiscard]] engine::OverflowWords& own_words() const { return *reinterpret_cast<engine::OverflowWords*>(words_); }
  void widen_window();
  void limit_window();
  void give_back_read();
  void give_back_written();

  // In this order what each message looks at is in one cache line.
  alignas(64) engine::OverflowReader in_;
  engine::ReadTeller reads_;
  engine::OverflowWriter out_;
  std::byte* words_ = nullptr;  ///< ours
  std::span<std::byte> area_;   ///< ours
  // The peer's, as it was offered
  std::optional<wire::RsOverflow> peer_;
  std::uint64_t peer_words_address_ = 0;
  std::uint32_t peer_key_ = 0;
  std::span<std::byte> peer_area_;
  engine::OverflowWords nobodys_{};  ///< in place of the peer's words, where only our area is open

  OverflowCharge charge_out_;  ///< for the start of the peer's area
  OverflowCharge charge_in_;   ///< for the window of ours
  std::atomic<Nanos> gives_back_at_{Nanos::max()};
  std::atomic<std::uint32_t> appends_{0};
  std::atomic<bool> waits_for_accept_{false};
  unsigned forks_ = 0;  ///< when they were opened
};

}  // namespace ringsock::rs
