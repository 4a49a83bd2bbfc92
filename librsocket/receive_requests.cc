#include "librsocket/receive_requests.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "librsocket/saved_connection.h"
#include "librsocket/work_requests.h"

namespace ringsock::rs {

namespace {

/// Links the requests to a list.
template <class List>
constexpr void link_requests(List& requests) {
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i] = {};
    requests[i].wr_id = kReceiveId;
    requests[i].next = i + 1 < requests.size() ? &requests[i + 1] : nullptr;
  }
}

/// A list of receives without memory, which all connections post: ibv_post_recv(3) only reads it. It is made by the
/// compiler, because a child that was forked while a thread makes such an object would wait for that thread.
struct BareReceives {
  constexpr BareReceives() { link_requests(requests); }
  std::array<ibv_recv_wr, ReceiveRequests::kBatch> requests{};
};
constinit BareReceives bare_receives;

}  // namespace

Status ReceiveRequests::begin(verbs::RcExtensions& rc, ibv_qp& qp, std::span<std::byte> words, std::uint32_t key) {
  qp_ = &qp;
  words_ = words;
  key_ = key;
  if (words_by_send_) {
    make_word_requests();
    return post_first();
  }
  const int error = rc.post_counted(qp, kReceiveId, receives_);
  if (error == EOPNOTSUPP) return post_first();
  if (error != 0) return Error{error, "post_counted"};
  return ok();
}

/// Posts all receives by lists.
Status ReceiveRequests::post_first() {
  for (unsigned posted = 0; posted < receives_;) {
    const unsigned batch = std::min(receives_ - posted, kBatch);
    for (unsigned i = 0; i < batch; ++i) will_post(i, posted + i);
    if (Status done = post(batch); !done) return done;
    posted += batch;
  }
  return ok();
}

/// Makes the list of receives into which message words come.
void ReceiveRequests::make_word_requests() {
  word_requests_.resize(kBatch);
  word_pieces_.resize(kBatch);
  word_numbers_.resize(kBatch);
  link_requests(word_requests_);
  for (std::size_t i = 0; i < kBatch; ++i) {
    word_requests_[i].sg_list = &word_pieces_[i];
    word_requests_[i].num_sge = 1;
  }
}

Status ReceiveRequests::post(unsigned count) {
  // The same linked list is used each time, from the entry at which `count` are left.
  const std::size_t first = kBatch - count;
  std::span<ibv_recv_wr> requests = bare_receives.requests;
  if (words_by_send_) [[unlikely]] {
    name_word_buffers(count);
    requests = word_requests_;
  }
  ibv_recv_wr* bad = nullptr;
  if (const int error = ibv_post_recv(qp_, &requests[first], &bad); error != 0) return Error{error, "ibv_post_recv"};
  return ok();
}

void ReceiveRequests::name_word_buffers(unsigned count) {
  const std::size_t first = kBatch - count;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t number = word_numbers_[i];
    word_requests_[first + i].wr_id = kReceiveId | number;
    word_pieces_[first + i] = {address_of(word_buffer(number)), sizeof(std::uint32_t), key_};
  }
}

bool ReceiveRequests::post_owed() {
  has_control_ = false;
  return owed_ == 0 || post(std::exchange(owed_, 0u));
}

std::uint32_t ReceiveRequests::word(std::uint64_t id) const {
  std::uint32_t word = 0;
  std::memcpy(&word, word_buffer(static_cast<std::uint32_t>(id)), sizeof word);
  return word;
}

void ReceiveRequests::save(SavedConnection& saved) const { saved.owed_receives = owed_; }

bool ReceiveRequests::is_possible(const SavedConnection& saved) { return saved.owed_receives <= kBatch; }

void ReceiveRequests::restore(const SavedConnection& saved) { owed_ = saved.owed_receives; }

}  // namespace ringsock::rs
