// The receives that a connection has posted.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/hot_lines.h"
#include "core/base/result.h"
#include "core/verbs/rc_extensions.h"

namespace ringsock::rs {

struct SavedConnection;

/// Posts the receives that the peer's messages use up, many at a time. Data does not come by them. Where message words
/// travel by SEND (iWARP), each has a buffer of a word.
///
/// Threads: one at a time, with ConnectionCore::poll_lock; receives() by any thread.
class ReceiveRequests {
 public:
  /// @param data_entries   receives for messages that have a credit
  /// @param words_by_send  SendRequests::has_words_by_send()
  ReceiveRequests(std::uint16_t data_entries, bool words_by_send)
      : receives_(data_entries + kControlReceives), words_by_send_(words_by_send) {}
  /// Posts all receives.
  /// @param words  receives() buffers for words, if they travel by SEND; in the memory region `key`
  Status begin(verbs::RcExtensions& rc, ibv_qp& qp, std::span<std::byte> words, std::uint32_t key);

  [[nodiscard]] unsigned receives() const { return receives_; }
  /// Returns the bytes that begin() needs.
  [[nodiscard]] std::size_t word_bytes() const { return words_by_send_ ? receives_ * sizeof(std::uint32_t) : 0; }

  /// Returns whether `count` more used receives can be noted.
  [[nodiscard]] bool has_room_for(int count) const { return owed_ + static_cast<unsigned>(count) <= kBatch; }
  /// Called for each used receive, which post_owed() posts again. There must be room for it.
  /// @param id  its wr_id
  void note_used(std::uint64_t id) { will_post(owed_++, static_cast<std::uint32_t>(id)); }
  /// Called for a message that came without a credit: the receives are posted again at once.
  void note_control() { has_control_ = true; }
  [[nodiscard]] bool has_control() const { return has_control_; }
  /// Posts used receives again, many at a time: the peer has no credit for them before it is granted one. Returns false
  /// when the queue pair accepts no more.
  bool post_owed();
  /// Returns the word that came with the receive of this wr_id, if words travel by SEND.
  [[nodiscard]] std::uint32_t word(std::uint64_t id) const;

  /// Adds what each message uses.
  void add_hot_lines(HotLines& lines) const { lines.add(this, &owed_); }

  // -- fork(2): see StateOf
  void save(SavedConnection& saved) const;
  [[nodiscard]] static bool is_possible(const SavedConnection& saved);
  void restore(const SavedConnection& saved);

  /// Receives are posted so many at a time.
  static constexpr unsigned kBatch = 32;
  /// Receives beyond the granted credits, for control messages, which need no credits.
  static constexpr unsigned kControlReceives = 8;

 private:
  Status post_first();
  void make_word_requests();
  Status post(unsigned count);
  /// Makes receive `number` the `i`th of those that post() posts next.
  void will_post(unsigned i, std::uint32_t number) {
    if (words_by_send_) [[unlikely]]
      word_numbers_[i] = number;
  }
  void name_word_buffers(unsigned count);
  [[nodiscard]] std::byte* word_buffer(std::size_t number) const {
    return words_.data() + number * sizeof(std::uint32_t);
  }

  ibv_qp* qp_ = nullptr;
  const unsigned receives_;
  const bool words_by_send_;
  bool has_control_ = false;  ///< among the used receives is one of a message that came without a credit
  unsigned owed_ = 0;         ///< used and not posted again yet, at most kBatch
  // words_by_send_
  std::span<std::byte> words_;
  std::uint32_t key_ = 0;
  std::vector<ibv_recv_wr> word_requests_;
  std::vector<ibv_sge> word_pieces_;         ///< the buffers of word_requests_
  std::vector<std::uint32_t> word_numbers_;  ///< the receives that are posted next
};

}  // namespace ringsock::rs
