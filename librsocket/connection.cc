#include "librsocket/connection.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>

#include "core/base/log.h"
#include "core/runtime/fork_registry.h"

namespace ringsock::rs {

namespace {

// The contents of a wr_id: the number of data messages that the completion retires (bits 0 to 15) and their bytes of
// the send ring (16 to 47), or one of these.
constexpr std::uint64_t kReceiveId = std::uint64_t{1} << 63;  ///< plus the number of the receive
constexpr std::uint64_t kControlId = std::uint64_t{1} << 62;  ///< plus the control slot
constexpr std::uint64_t kEndId = std::uint64_t{1} << 61;
constexpr std::uint64_t kPartId = std::uint64_t{1} << 60;  ///< the WRITE before a SEND: completes only when it fails
constexpr std::uint64_t kLookId = std::uint64_t{1} << 59;  ///< RsControl::look: completes only when it fails
constexpr std::uint64_t kNotData = kReceiveId | kControlId | kEndId | kPartId | kLookId;
constexpr unsigned kRingBytesShift = 16;

/// A message longer than this is sent in pieces, so that the reader copies one while the writer copies the next.
constexpr std::uint32_t kPieceBytes = 16 * 1024;

/// From the send ring: the first piece of a call is small, so that the device begins early; the next ones are twice as
/// long.
constexpr std::uint32_t kFirstRingPieceBytes = 8 * 1024;
constexpr std::uint32_t kMaxRingPieceBytes = 64 * 1024;

constexpr std::uint32_t kRingAlignment = 64;
constexpr std::size_t kPageBytes = 4096;
/// One message in each direction may be under way: about bytes put into the peer's area, about room in ours.
constexpr unsigned kLookSlots = 2;

/// On one host an announcement costs little, so a connection begins with a quarter of its receive ring, which grows
/// when the peer sends more at once.
constexpr std::uint32_t kFirstBytesOnOneHost = 16384;

/// Limits the work of one call for a peer that never stops sending.
constexpr int kMaxBatchesPerPoll = 16;

/// Returns whether the device accepts whole pieces inline and so needs no send ring.
bool takes_all_inline(const verbs::Device& device) { return device.max_inline_data() >= kPieceBytes; }

/// Returns the inline size to request: the maximum where inline data costs nothing extra; on a real device each byte
/// makes the queue's entries longer. It includes the payload of control messages, if the device permits.
std::uint32_t inline_request(const verbs::Device& device, const QueueSettings& settings) {
  if (takes_all_inline(device)) return device.max_inline_data();
  const auto control = static_cast<std::uint32_t>(sizeof(wire::PeerIomap));
  return std::min(std::max(settings.inline_bytes, control), device.max_inline_data());
}

/// Returns the settings, reduced to the limits of the device.
Result<QueueSettings> fitted_to(verbs::Device& device, QueueSettings settings, unsigned extra_sends,
                                unsigned extra_receives) {
  auto attr = device.query_device();
  if (!attr) return attr.error();
  const unsigned per_message = device.has_write_with_immediate() ? 1 : 2;
  const auto entries = static_cast<unsigned>(std::max(0, attr->max_qp_wr));
  const auto completions = static_cast<unsigned>(std::max(0, attr->max_cqe));
  const unsigned sends = std::min(entries / per_message, completions / 2);
  const unsigned receives = std::min(entries, completions / 2);
  constexpr unsigned kLeast = 16;
  if (sends < kLeast + extra_sends || receives < kLeast + extra_receives) {
    return Error{ENOTSUP, "rsocket: the device's queues are too short"};
  }
  settings.send_queue = static_cast<std::uint16_t>(std::min<unsigned>(settings.send_queue, sends - extra_sends));
  settings.receive_queue =
      static_cast<std::uint16_t>(std::min<unsigned>(settings.receive_queue, receives - extra_receives));
  return settings;
}

std::uint32_t word_in_network_order(std::uint32_t word) { return std::bit_cast<std::uint32_t>(wire::Be32(word)); }

std::uint64_t address_of(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

}  // namespace

Result<std::unique_ptr<Connection>> Connection::create(verbs::ConnectionId& id, const QueueSettings& wanted) {
  auto settings = fitted_to(id.device(), wanted, kEndSlots, kControlReceives);
  if (!settings) return settings.error();
  const verbs::Device& device = id.device();
  const bool has_overflow = settings->receive_overflow != 0 && settings->send_overflow != 0 && device.is_embedded() &&
                            takes_all_inline(device) && device.has_write_with_immediate();
  if (!has_overflow) settings->receive_overflow = 0;
  std::unique_ptr<Connection> connection(new Connection(id.device(), *settings));
  if (Status made = connection->make_resources(id); !made) return made.error();
  return connection;
}

Connection::Connection(verbs::Device& device, const QueueSettings& settings)
    : device_(device),
      settings_(settings),
      receive_window_(settings.receive_ring, settings.receive_queue,
                      device.is_embedded() ? kFirstBytesOnOneHost : UINT32_MAX) {}

Connection::~Connection() {
  if (!overflow_.were_used()) return;
  device_.leaves_traces(*memory_.qp);
  if (!suspended_.load(std::memory_order_relaxed)) overflow_.close();
}

std::size_t Connection::ring_offset() const {
  const std::size_t tables = kSglBytes + settings_.iomap_entries * sizeof(wire::PeerIomap);
  const std::size_t words = settings_.receive_overflow != 0 ? wire::kRsOverflowWordBytes : 0;
  return (tables + kRingAlignment - 1) / kRingAlignment * kRingAlignment + words;
}

/// The area has pages of its own, behind the ring.
std::size_t Connection::overflow_offset() const {
  return (ring_offset() + settings_.receive_ring + kPageBytes - 1) / kPageBytes * kPageBytes;
}

Status Connection::make_resources(verbs::ConnectionId& id) {
  words_by_send_ = !device_.has_write_with_immediate();
  auto pd = device_.alloc_pd();
  if (!pd) return pd.error();
  pd_ = *std::move(pd);
  if (!device_.wakes_through_connection()) {
    auto channel = device_.create_comp_channel();
    if (!channel) return channel.error();
    channel_ = *std::move(channel);
  }
  const unsigned looks = settings_.receive_overflow != 0 ? kLookSlots : 0;
  const unsigned sends = settings_.send_queue + kEndSlots + looks;
  auto cq = device_.create_cq(static_cast<int>(sends + receives()), this, channel_.get(), 0);
  if (!cq) return cq.error();
  cq_ = *std::move(cq);
  if (Status made = make_queue_pair(id); !made) return made;
  if (Status made = make_local_memory(); !made) return made;
  signal_every_ = std::max(1u, (settings_.send_queue - kControlSlots) / 4);
  own_iomap_.resize(settings_.iomap_entries);
  return post_first_receives();
}

/// Makes the queue pair without an overflow area where the larger memory is not to be had (RLIMIT_AS, RLIMIT_FSIZE).
Result<verbs::ConnectionQp> Connection::create_queue_pair(verbs::ConnectionId& id, ibv_qp_init_attr& attr) {
  if (settings_.receive_overflow != 0) {
    ibv_qp_init_attr wished = attr;
    wished.cap.max_send_wr += kLookSlots;
    const std::size_t area = (settings_.receive_overflow + kPageBytes - 1) / kPageBytes * kPageBytes;
    auto qp = id.create_qp(*pd_, wished, {overflow_offset() + area, area});
    if (qp) {
      attr.cap = wished.cap;
      return qp;
    }
    settings_.receive_overflow = 0;
  }
  return id.create_qp(*pd_, attr, ring_offset() + settings_.receive_ring);
}

Status Connection::make_queue_pair(verbs::ConnectionId& id) {
  const unsigned requests_per_message = words_by_send_ ? 2 : 1;
  ibv_qp_init_attr attr{};
  attr.send_cq = attr.recv_cq = cq_.get();
  attr.qp_type = IBV_QPT_RC;
  attr.cap.max_send_wr = (settings_.send_queue + kEndSlots) * requests_per_message;
  attr.cap.max_recv_wr = receives();
  attr.cap.max_send_sge = takes_all_inline(device_) ? 16 : 2;
  attr.cap.max_recv_sge = 1;
  attr.cap.max_inline_data = inline_request(device_, settings_);
  auto qp = create_queue_pair(id, attr);
  if (!qp) return qp.error();
  memory_ = *std::move(qp);
  ring_ = memory_.receive_memory.data() + ring_offset();
  if (settings_.receive_overflow != 0) {
    overflow_.offer(ring_ - wire::kRsOverflowWordBytes,
                    memory_.receive_memory.subspan(overflow_offset(), settings_.receive_overflow));
  }

  const std::uint32_t granted = std::min(attr.cap.max_inline_data, device_.max_inline_data());
  if (words_by_send_ && granted < sizeof(std::uint32_t)) return Error{ENOTSUP, "rsocket: no inline message words"};
  control_inline_ = granted >= sizeof(wire::PeerIomap);
  if (takes_all_inline(device_) || settings_.inline_bytes != 0) {
    settings_.inline_bytes = std::min<std::uint32_t>(granted, INT32_MAX);
  }
  max_inline_ = settings_.inline_bytes;
  gather_.resize(std::max(2u, attr.cap.max_send_sge));
  return ok();
}

/// Makes the memory that the peer cannot access: for data to send, and for words that arrive by SEND.
Status Connection::make_local_memory() {
  if (takes_all_inline(device_) && !words_by_send_) return ok();
  const std::size_t words = words_by_send_ ? receives() * sizeof(std::uint32_t) : 0;
  auto ring = SendRing::create(device_, *pd_, settings_.send_ring, kControlScratchBytes + words);
  if (!ring) return ring.error();
  send_ring_ = *std::move(ring);
  return ok();
}

Status Connection::post_first_receives() {
  if (words_by_send_) make_word_requests();
  for (unsigned posted = 0; posted < receives();) {
    const unsigned batch = std::min(receives() - posted, kReceiveBatch);
    for (unsigned i = 0; i < batch; ++i) will_post_receive(i, posted + i);
    if (Status done = post_receives(batch); !done) return done;
    posted += batch;
  }
  return ok();
}

wire::RsConnectMore Connection::connect_data() const {
  const auto& memory = memory_.receive_memory;
  const std::uint32_t key = memory_.receive_mr->rkey;
  wire::RsConnectMore more{};
  wire::RsConnect& data = more.connect;
  data.version = wire::kRsVersion;
  data.flags = wire::kRsLocalOrderFlag | wire::kRsHasIomap;
  data.credits = wire::Be16(settings_.receive_queue);
  data.iomap_size_scaled = wire::encode_iomap_size(settings_.iomap_entries);
  data.target_sgl = {wire::Be64(address_of(memory.data())), wire::Be32(key), wire::Be32(kSglEntries)};
  data.first_buffer = {wire::Be64(address_of(ring_)), wire::Be32(key), wire::Be32(receive_window_.first_bytes())};
  more.overflow = overflow_.offered();
  return more;
}

Status Connection::start(const wire::RsConnect& peer, const std::optional<wire::RsOverflow>& overflow) {
  overflow_.take_offer(peer, overflow);
  peer_sgl_entries_ = peer.target_sgl.length.host();
  if (peer_sgl_entries_ == 0) return Error{EPROTO, "rsocket: the peer has no table for buffers"};
  peer_sgl_address_ = peer.target_sgl.addr.host();
  peer_sgl_key_ = peer.target_sgl.key.host();
  peer_sgl_next_ = 1 % peer_sgl_entries_;
  peer_iomap_entries_ = (peer.flags & wire::kRsHasIomap) != 0 ? wire::decode_iomap_size(peer.iomap_size_scaled) : 0;
  swap_for_peer_ = (peer.flags & wire::kRsBigEndianHost) != wire::kRsLocalOrderFlag;
  const bool held = held_.load(std::memory_order_relaxed);
  held_credits_ = peer.credits.host();
  const wire::PeerSge first{peer.first_buffer.addr.host(), peer.first_buffer.key.host(),
                            peer.first_buffer.length.host()};
  if (Status usable = send_window_.reset(first, held ? std::uint16_t{0} : held_credits_); !usable) return usable;

  data_request_.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  data_request_.sg_list = gather_.data();
  return ok();
}

void Connection::open_overflow(std::optional<uid_t> other_user) {
  overflow_.open(device_, *memory_.qp, settings_.send_overflow, other_user);
}

void Connection::let_go_of_hold() {
  if (!held_.exchange(false, std::memory_order_acq_rel)) return;
  send_window_.set_limit(held_credits_);
}

void Connection::established() {
  // iWARP (RFC 5044, 7.1.2): the passive side must not send before the active side has. Every rsocket that waits for
  // data first announces its buffer, so a message comes.
  if (words_by_send_) return;
  const std::lock_guard guard(poll_lock_);
  let_go_of_hold();
}

// -- sending

inline bool Connection::was_posted(int error) {
  if (error == 0) [[likely]]
    return true;
  log_debug("ibv_post_send: error %d", error);
  fail(ECONNRESET);
  return false;
}

[[gnu::always_inline]] inline bool Connection::post(ibv_send_wr& request) {
  ibv_send_wr* bad = nullptr;
  if (words_by_send_ && request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) [[unlikely]]
    return was_posted(post_as_write_and_send(request));
  return was_posted(ibv_post_send(memory_.qp.get(), &request, &bad));
}

inline void Connection::address_data_request(std::uint32_t length) {
  const auto placement = send_window_.take(length);
  data_request_.imm_data = word_in_network_order(wire::encode_rs_message({wire::RsOpcode::data, length}));
  data_request_.wr.rdma.remote_addr = placement.addr;
  data_request_.wr.rdma.rkey = placement.key;
}

inline void Connection::ask_for_completion(ibv_send_wr& request, std::uint32_t ring_bytes, bool always) {
  unsignalled_ring_bytes_ += ring_bytes;
  if (++unsignalled_ < signal_every_ && unsignalled_ring_bytes_ <= send_ring_.size() / 4 && !always) return;
  request.send_flags |= IBV_SEND_SIGNALED;
  request.wr_id = std::exchange(unsignalled_, 0u) | std::uint64_t{std::exchange(unsignalled_ring_bytes_, 0u)}
                                                        << kRingBytesShift;
}

bool Connection::send_at_once(const void* data, std::size_t length) {
  if (suspended_.load(std::memory_order_relaxed) || overflow_.in_use()) [[unlikely]]
    return false;
  if (length - 1 >= std::min({send_window_.room(), kPieceBytes, max_inline_}) || !has_room_to_post()) return false;
  gather_[0] = {address_of(data), static_cast<std::uint32_t>(length), 0};
  data_request_.num_sge = 1;
  data_request_.send_flags = IBV_SEND_INLINE;
  address_data_request(static_cast<std::uint32_t>(length));
  ask_for_completion(data_request_, 0, false);
  count_posted();
  return post(data_request_);
}

std::size_t Connection::send(IoCursor& data) {
  std::size_t sent = 0;
  if (suspended_.load(std::memory_order_relaxed) || !sends_on_ring()) [[unlikely]]
    return 0;
  std::uint32_t ring_piece = kFirstRingPieceBytes;
  while (!data.done() && has_room_to_post()) {
    const std::uint32_t room = send_window_.room();
    if (room == 0) break;
    const std::uint32_t inline_limit = std::min({room, kPieceBytes, max_inline_});
    std::uint32_t length = 0;
    std::uint32_t ring_bytes = 0;
    if (!send_ring_ || data.fits(inline_limit, gather_.size())) {
      length = gather_inline(data, inline_limit);
      data_request_.send_flags = IBV_SEND_INLINE;
    } else {
      length = ring_bytes = gather_from_ring(data, std::min(room, ring_piece));
      data_request_.send_flags = 0;
      ring_piece = std::min(2 * ring_piece, kMaxRingPieceBytes);
    }
    address_data_request(length);
    ask_for_completion(data_request_, ring_bytes, false);
    count_posted();
    if (!post(data_request_)) break;
    sent += length;
  }
  return sent;
}

/// Returns whether bytes may go to the ring, because none wait in the peer's overflow area.
inline bool Connection::sends_on_ring() {
  if (!overflow_.in_use()) [[likely]]
    return true;
  const auto left = overflow_.leave();
  if (!left) fail(ECONNRESET);
  return left && *left;
}

std::size_t Connection::send_ahead(IoCursor& data) {
  if (suspended_.load(std::memory_order_relaxed) || !overflow_.can_append()) return 0;
  // A message or a direct write that waits in the queue comes before these bytes.
  if (!device_.has_sent_all(*memory_.qp)) return 0;
  const auto appended = overflow_.append(data, send_window_.sequence());
  if (!appended) fail(ECONNRESET);
  if (!appended) return 0;
  if (appended->must_tell) post_look();
  return appended->bytes;
}

/// Makes the peer look at its overflow area, or at the room in ours.
void Connection::post_look() {
  ibv_send_wr request{};
  request.wr_id = kLookId;
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request.send_flags = IBV_SEND_INLINE;
  request.imm_data = word_in_network_order(
      wire::encode_rs_message({wire::RsOpcode::ctrl, static_cast<std::uint32_t>(wire::RsControl::look)}));
  post(request);
}

inline std::uint32_t Connection::gather_inline(IoCursor& data, std::uint32_t limit) {
  std::uint32_t length = 0;
  std::size_t parts = 0;
  do {
    const auto piece = data.take(limit - length);
    const auto bytes = static_cast<std::uint32_t>(piece.size());
    gather_[parts++] = {address_of(piece.data()), bytes, 0};
    length += bytes;
  } while (!data.done() && length < limit && parts < gather_.size());
  data_request_.num_sge = static_cast<int>(parts);
  return length;
}

std::uint32_t Connection::gather_from_ring(IoCursor& data, std::uint32_t limit) {
  const auto pieces = send_ring_.copy_in(data, limit);
  std::copy_n(pieces.list.begin(), pieces.count, gather_.begin());
  data_request_.num_sge = pieces.count;
  return pieces.length;
}

std::size_t Connection::write_direct(const std::byte* data, std::size_t size, std::uint64_t remote_address,
                                     std::uint32_t key) {
  IoCursor cursor(const_cast<std::byte*>(data), size);
  std::size_t written = 0;
  if (suspended_.load(std::memory_order_relaxed)) return 0;
  while (written < size && has_room_to_post()) {
    ibv_send_wr request{};
    request.opcode = IBV_WR_RDMA_WRITE;
    ibv_sge piece{};
    SendRing::Pieces pieces{};
    std::uint32_t length = 0;
    if (send_ring_ && size - written > max_inline_) {
      pieces = send_ring_.copy_in(cursor, kMaxRingPieceBytes);
      length = pieces.length;
      request.sg_list = pieces.list.data();
      request.num_sge = pieces.count;
    } else {
      length = static_cast<std::uint32_t>(std::min<std::size_t>(size - written, max_inline_));
      piece = {address_of(cursor.piece().data()), length, 0};
      cursor.advance(length);
      request.sg_list = &piece;
      request.num_sge = 1;
      request.send_flags = IBV_SEND_INLINE;
    }
    request.wr.rdma.remote_addr = remote_address + written;
    request.wr.rdma.rkey = key;
    // Each is signalled, because a refused write must be noticed although no message follows.
    ask_for_completion(request, pieces.length, true);
    count_posted();
    if (!post(request)) break;
    written += length;
  }
  direct_end_.store(posted_.load(std::memory_order_relaxed), std::memory_order_release);
  return written;
}

// -- reading

std::size_t Connection::receive(IoCursor& out, bool peek) {
  if (suspended_.load(std::memory_order_relaxed)) [[unlikely]]
    return 0;
  std::size_t copied = receive_from_ring(out, peek, 0);
  if (!out.done() && overflow_.readable() != 0) [[unlikely]]
    copied += receive_overflow(out, peek, copied);
  // The peer may have filled what it was given while the application waits for more.
  if (peek) announce_if_due();
  return copied;
}

/// @param ahead  bytes that a peek has copied before
std::size_t Connection::receive_from_ring(IoCursor& out, bool peek, std::size_t ahead) {
  std::size_t copied = 0;
  while (!out.done()) {
    const auto span = receive_window_.peek(peek ? ahead + copied : 0);
    if (span.length == 0) break;
    const std::size_t step = out.fill_from(ring_ + span.offset, span.length);
    copied += step;
    if (!peek) receive_window_.consume(step);
  }
  return copied;
}

/// Goes on behind the ring, of which a peek has copied `ahead` bytes. The bytes of the area are counted before the last
/// look at the ring, so all messages in front of them are found there.
std::size_t Connection::receive_overflow(IoCursor& out, bool peek, std::size_t ahead) {
  const std::uint64_t counted = overflow_.readable();
  const std::size_t copied = receive_from_ring(out, peek, ahead);
  const std::size_t taken = overflow_.copy_to(out, counted);
  if (!peek && taken > 0) consume_overflow(taken);
  return copied + taken;
}

void Connection::consume_overflow(std::uint64_t bytes) {
  bool must_tell = overflow_.consume(bytes);
  if (overflow_.is_limited()) {
    const std::lock_guard guard(poll_lock_);
    must_tell |= overflow_.release();
  }
  if (must_tell) post_look();
}

void Connection::give_back() {
  overflow_.give_back_at(Nanos::max());
  if (suspended_.load(std::memory_order_relaxed)) return;
  bool must_tell = false;
  {
    const std::lock_guard guard(poll_lock_);
    must_tell = overflow_.give_back();
  }
  if (must_tell) post_look();
}

bool Connection::look_into_overflow() {
  const auto found = overflow_.look(static_cast<std::uint16_t>(receive_window_.arrived_messages()));
  if (overflow_.release(has_failed_work_.load(std::memory_order_relaxed))) post_look();
  if (found) return *found;
  log_info("%s", found.error().where);
  fail(ECONNRESET);
  return true;
}

std::size_t Connection::receive(void* data, std::size_t length) {
  std::size_t copied = 0;
  if (suspended_.load(std::memory_order_relaxed)) [[unlikely]]
    return 0;
  do {
    const auto span = receive_window_.peek();
    const std::size_t step = std::min<std::size_t>(span.length, length - copied);
    if (step == 0) break;
    std::memcpy(static_cast<std::byte*>(data) + copied, ring_ + span.offset, step);
    receive_window_.consume(step);
    copied += step;
  } while (copied < length);
  if (copied < length && overflow_.readable() != 0) [[unlikely]] {
    IoCursor rest(static_cast<std::byte*>(data) + copied, length - copied);
    copied += receive_overflow(rest, false, 0);
  }
  return copied;
}

bool Connection::announce_due() {
  if (suspended_.load(std::memory_order_relaxed)) [[unlikely]]
    return true;
  if (failure() != 0 || peer_disconnected() || held_.load(std::memory_order_acquire)) return true;
  // A thread that writes to its own process may only read afterwards, as far as the receive ring has room.
  if (!std::exchange(has_announced_, true) && device_.is_own_process(*memory_.qp)) receive_window_.use_all();
  while (const auto due = receive_window_.due()) {
    const auto slot = take_control_slot();
    if (!slot) return false;  // due() stays true
    {
      const std::lock_guard guard(poll_lock_);
      post_owed_receives();
    }
    // Counted before it is sent, because another thread may poll the peer's answer before this one continues.
    receive_window_.announced(*due);
    ibv_send_wr request{};
    ibv_sge piece{};
    wire::PeerSge entry{};
    request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    request.imm_data = word_in_network_order(wire::encode_rs_message({wire::RsOpcode::sgl, due->limit}));
    if (due->has_buffer) {
      entry = {address_of(ring_ + due->offset), memory_.receive_mr->rkey, due->length};
      if (swap_for_peer_) entry = wire::swap_bytes(entry);
      piece = {address_of(&entry), sizeof entry, 0};
      request.sg_list = &piece;
      request.num_sge = 1;
      request.wr.rdma.remote_addr = peer_sgl_address_ + sizeof entry * peer_sgl_next_;
      request.wr.rdma.rkey = peer_sgl_key_;
    }
    if (due->has_buffer) peer_sgl_next_ = (peer_sgl_next_ + 1) % peer_sgl_entries_;
    if (Status posted = post_in_control_slot(request, *slot); !posted) return true;
  }
  return true;
}

// -- control

std::optional<unsigned> Connection::take_control_slot() {
  std::uint32_t free = free_control_slots_.load(std::memory_order_relaxed);
  while (free != 0) {
    const auto slot = static_cast<unsigned>(std::countr_zero(free));
    if (free_control_slots_.compare_exchange_weak(free, free & (free - 1), std::memory_order_acquire)) return slot;
  }
  return std::nullopt;
}

void Connection::free_control_slot(unsigned slot) {
  free_control_slots_.fetch_or(1u << slot, std::memory_order_release);
}

Status Connection::post_control(ibv_send_wr& request) {
  const auto slot = take_control_slot();
  if (!slot) return Error{EAGAIN, "rsocket: no control slot"};
  return post_in_control_slot(request, *slot);
}

Status Connection::post_in_control_slot(ibv_send_wr& request, unsigned slot) {
  request.wr_id = kControlId | slot;
  request.send_flags = IBV_SEND_SIGNALED;
  ibv_sge copy{};
  if (control_inline_ || request.num_sge == 0) {
    request.send_flags |= IBV_SEND_INLINE;
  } else {
    const ibv_sge& piece = *request.sg_list;
    std::byte* const scratch = send_ring_.extra().data() + slot * sizeof(wire::PeerIomap);
    std::memcpy(scratch, reinterpret_cast<const void*>(piece.addr), piece.length);
    copy = {address_of(scratch), piece.length, send_ring_.key()};
    request.sg_list = &copy;
  }
  const bool posted = post(request);
  request.sg_list = nullptr;  // `copy` ends here
  return posted ? ok() : Error{ECONNRESET, "ibv_post_send"};
}

/// Fact sheet 2.5: the payload by WRITE, then the word by SEND, in the byte order of this host.
int Connection::post_as_write_and_send(ibv_send_wr& request) {
  std::uint32_t word = std::bit_cast<wire::Be32>(request.imm_data).host();
  ibv_sge word_piece{address_of(&word), sizeof word, 0};
  ibv_send_wr send{};
  send.wr_id = request.wr_id;
  send.opcode = IBV_WR_SEND;
  send.sg_list = &word_piece;
  send.num_sge = 1;
  send.send_flags = IBV_SEND_INLINE | (request.send_flags & IBV_SEND_SIGNALED);
  ibv_send_wr write = request;
  write.wr_id = kPartId;
  write.opcode = IBV_WR_RDMA_WRITE;
  write.send_flags = request.send_flags & IBV_SEND_INLINE;
  write.next = &send;
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(memory_.qp.get(), request.num_sge > 0 ? &write : &send, &bad);
}

Status Connection::send_control(wire::RsControl control) {
  if (held_.load(std::memory_order_acquire)) return Error{ENOTCONN, "rsocket: the peer is not ready"};
  ibv_send_wr request{};
  request.wr_id = kEndId;
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request.send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED;
  request.imm_data =
      word_in_network_order(wire::encode_rs_message({wire::RsOpcode::ctrl, static_cast<std::uint32_t>(control)}));
  ends_under_way_.fetch_add(1, std::memory_order_relaxed);
  return post(request) ? ok() : Error{ECONNRESET, "ibv_post_send"};
}

Status Connection::send_keepalive() {
  // The lock keeps fork(2) out.
  const std::lock_guard guard(poll_lock_);
  if (suspended_.load(std::memory_order_relaxed)) return ok();
  if (held_.load(std::memory_order_relaxed)) return ok();
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_WRITE;
  // No byte is written, but some devices check the key nevertheless.
  request.wr.rdma.remote_addr = peer_sgl_address_;
  request.wr.rdma.rkey = peer_sgl_key_;
  return post_control(request);
}

Status Connection::send_iomap(std::uint32_t index, const wire::PeerIomap& entry) {
  wire::PeerIomap ordered = swap_for_peer_ ? wire::swap_bytes(entry) : entry;
  ibv_sge piece{address_of(&ordered), sizeof ordered, 0};
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request.imm_data = word_in_network_order(wire::encode_rs_message({wire::RsOpcode::iomap_sgl, index}));
  request.sg_list = &piece;
  request.num_sge = 1;
  request.wr.rdma.remote_addr =
      peer_sgl_address_ + sizeof(wire::PeerSge) * peer_sgl_entries_ + sizeof ordered * std::uint64_t{index};
  request.wr.rdma.rkey = peer_sgl_key_;
  return post_control(request);
}

void Connection::add_fork_locks(runtime::ForkLocks& locks) { locks.add_biased(2, poll_lock_); }

// -- completions

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
  std::array<ibv_recv_wr, kReceiveBatch> requests{};
};
constinit BareReceives bare_receives;

}  // namespace

/// Makes the list of receives into which message words come.
void Connection::make_word_requests() {
  word_requests_.resize(kReceiveBatch);
  word_pieces_.resize(kReceiveBatch);
  word_numbers_.resize(kReceiveBatch);
  link_requests(word_requests_);
  for (std::size_t i = 0; i < kReceiveBatch; ++i) {
    word_requests_[i].sg_list = &word_pieces_[i];
    word_requests_[i].num_sge = 1;
  }
}

Status Connection::post_receives(unsigned count) {
  // The same linked list is used each time, from the entry at which `count` are left.
  const std::size_t first = kReceiveBatch - count;
  std::span<ibv_recv_wr> requests = bare_receives.requests;
  if (words_by_send_) [[unlikely]] {
    name_word_buffers(count);
    requests = word_requests_;
  }
  ibv_recv_wr* bad = nullptr;
  if (const int error = ibv_post_recv(memory_.qp.get(), &requests[first], &bad); error != 0) {
    return Error{error, "ibv_post_recv"};
  }
  return ok();
}

void Connection::name_word_buffers(unsigned count) {
  const std::size_t first = kReceiveBatch - count;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t number = word_numbers_[i];
    word_requests_[first + i].wr_id = kReceiveId | number;
    word_pieces_[first + i] = {address_of(word_buffer(number)), sizeof(std::uint32_t), send_ring_.key()};
  }
}

bool Connection::poll() {
  constexpr int kBatch = kReceiveBatch;
  ibv_wc completions[kBatch];
  bool changed = false;
  std::lock_guard guard(poll_lock_);
  if (suspended_.load(std::memory_order_relaxed)) [[unlikely]]
    return false;
  bool has_stamp = false;
  for (int batches = 0; batches < kMaxBatchesPerPoll; ++batches) {
    const int count = ibv_poll_cq(cq_.get(), kBatch, completions);
    if (count < 0) {
      fail(EIO);
      return true;
    }
    if (count == 0) return changed;
    if (owed_receives_ + static_cast<unsigned>(count) > kReceiveBatch) changed |= post_owed_receives();
    for (int i = 0; i < count; ++i) changed |= handle(completions[i]);
    if (has_stamps_.load(std::memory_order_relaxed) && !has_stamp)
      has_stamp = take_stamp({completions, completions + count});
    if (has_control_) changed |= post_owed_receives();
    if (count < kBatch) return changed;
  }
  // There is more: a thread that is about to sleep must look again.
  return true;
}

/// Posts used receives again, many at a time: the peer has no credit for them before announce_if_due() grants one.
/// Receives used by messages without a credit are posted again at once. Returns true when the queue pair accepts no
/// more.
bool Connection::post_owed_receives() {
  has_control_ = false;
  if (owed_receives_ == 0) return false;
  if (post_receives(std::exchange(owed_receives_, 0u))) return false;
  if (closing_.load(std::memory_order_relaxed) || peer_disconnected()) return false;
  note_flush();
  return true;
}

/// Called when receives were flushed for a reason that is not known yet.
void Connection::note_flush() {
  if (device_.works_in_background()) {
    flushed_.store(true, std::memory_order_release);
  } else {
    fail(ECONNRESET);
  }
}

bool Connection::handle(const ibv_wc& completion) {
  if (completion.status != IBV_WC_SUCCESS) [[unlikely]]
    return handle_failed(completion);
  if ((completion.wr_id & kReceiveId) == 0) {
    handle_sent(completion.wr_id);
    return true;
  }
  will_post_receive(owed_receives_++, static_cast<std::uint32_t>(completion.wr_id));
  return handle_received(completion);
}

/// Retires a send. A thread that waits for room is woken by the queue pair's next completion at the latest.
void Connection::handle_sent(std::uint64_t id) {
  if ((id & kNotData) == 0) {
    if (send_ring_) send_ring_.retire(static_cast<std::uint32_t>(id >> kRingBytesShift));
    retired_.store(retired_.load(std::memory_order_relaxed) + static_cast<std::uint16_t>(id),
                   std::memory_order_release);
  } else if ((id & kControlId) != 0) {
    free_control_slot(static_cast<unsigned>(id & (kControlSlots - 1)));
  } else if ((id & kEndId) != 0) {
    ends_under_way_.fetch_sub(1, std::memory_order_release);
  }
}

bool Connection::handle_failed(const ibv_wc& completion) {
  has_failed_work_.store(true, std::memory_order_release);
  look_into_overflow();  // what the peer wrote before its end
  // A failed completion only has a valid wr_id and status.
  if ((completion.wr_id & (kControlId | kEndId)) != 0) handle_sent(completion.wr_id);
  if (closing_.load(std::memory_order_relaxed) || peer_disconnected()) return true;
  if (completion.vendor_err == verbs::kVendorErrPeerEnded) {
    // As TCP: the kernel ends a process's connections in order, or by a reset if they have unread bytes. The latter is
    // certain here when the peer has left no room for more.
    if (send_window_.can_send() && overflow_.is_empty()) {
      peer_left();
    } else {
      fail(ECONNRESET);
    }
    return true;
  }
  const bool is_data = (completion.wr_id & (kReceiveId | kControlId | kEndId | kLookId)) == 0;
  // The loss of bytes that were reported as sent is always a reset.
  const bool in_background = device_.works_in_background();
  const bool is_end =
      completion.status == IBV_WC_WR_FLUSH_ERR || (completion.status == IBV_WC_RETRY_EXC_ERR && !in_background);
  if (is_end && !is_data) {
    // On the embedded device messages that the peer sent before its end complete before the flushed receives.
    if (in_background || (completion.wr_id & kReceiveId) != 0) note_flush();
    return true;
  }
  if (failure() == 0)
    log_info("rsocket: a work request failed: status %d, vendor error %#x", static_cast<int>(completion.status),
             completion.vendor_err);
  const bool refused = completion.status == IBV_WC_REM_ACCESS_ERR || completion.status == IBV_WC_REM_INV_REQ_ERR ||
                       completion.status == IBV_WC_REM_OP_ERR || completion.status == IBV_WC_LOC_PROT_ERR;
  // The peer has not acknowledged anything for long. Without a network in between its process has ended.
  const bool unheard = completion.status == IBV_WC_RETRY_EXC_ERR && in_background;
  fail(refused ? EIO : unheard ? ETIMEDOUT : ECONNRESET);
  return true;
}

bool Connection::handle_received(const ibv_wc& completion) {
  if (held_.load(std::memory_order_relaxed)) [[unlikely]]
    let_go_of_hold();
  if ((completion.wc_flags & IBV_WC_WITH_IMM) != 0) [[likely]]
    return handle_message(std::bit_cast<wire::Be32>(completion.imm_data).host());
  if (words_by_send_ && completion.byte_len == sizeof(std::uint32_t)) {
    std::uint32_t word = 0;
    std::memcpy(&word, word_buffer(static_cast<std::uint32_t>(completion.wr_id)), sizeof word);
    return handle_message(word);
  }
  log_info("rsocket: the peer sent something that is no message");
  fail(ECONNRESET);
  return true;
}

bool Connection::handle_message(std::uint32_t word) {
  const auto message = wire::decode_rs_message(word);
  if (wire::is_rs_control(message.opcode)) return handle_control(message);
  if (Status counted = receive_window_.arrived(message.value); !counted) [[unlikely]] {
    log_info("%s", counted.error().where);
    fail(ECONNRESET);
  }
  return true;
}

bool Connection::handle_control(const wire::RsMessage& message) {
  has_control_ = true;
  switch (message.opcode) {
    case wire::RsOpcode::sgl:
      send_window_.set_limit(message.value);
      take_announced_buffer();
      return true;
    case wire::RsOpcode::iomap_sgl: take_iomap_entry(message.value); return true;
    case wire::RsOpcode::ctrl:
      if (message.value == static_cast<std::uint32_t>(wire::RsControl::disconnect)) {
        peer_disconnected_.store(true, std::memory_order_release);
      }
      if (message.value == static_cast<std::uint32_t>(wire::RsControl::shutdown)) {
        peer_shut_down_.store(true, std::memory_order_release);
      }
      if (message.value == static_cast<std::uint32_t>(wire::RsControl::look)) look_into_overflow();
      return true;
    default: return false;
  }
}

void Connection::take_announced_buffer() {
  // The peer may write here at any time, so the length is read once before the entry is taken.
  std::byte* slot = memory_.receive_memory.data() + own_sgl_next_ * sizeof(wire::PeerSge);
  std::atomic_ref length(reinterpret_cast<wire::PeerSge*>(slot)->length);
  if (length.load(std::memory_order_acquire) == 0) return;  // credits only
  wire::PeerSge entry;
  std::memcpy(&entry, slot, sizeof entry);
  length.store(0, std::memory_order_relaxed);
  if (entry.length == 0) return;
  if (Status added = send_window_.add_buffer(entry); !added) {
    log_info("%s", added.error().where);
    fail(ECONNRESET);
    return;
  }
  own_sgl_next_ = (own_sgl_next_ + 1) % kSglEntries;
}

void Connection::take_iomap_entry(std::uint32_t index) {
  if (index >= own_iomap_.size()) return;  // no slot of ours: ignored like an unknown control value
  std::memcpy(&own_iomap_[index], memory_.receive_memory.data() + kSglBytes + index * sizeof(wire::PeerIomap),
              sizeof(wire::PeerIomap));
}

std::optional<wire::PeerIomap> Connection::find_iomap(std::uint64_t offset) {
  std::lock_guard guard(poll_lock_);
  for (const wire::PeerIomap& entry : own_iomap_) {
    if (offset >= entry.offset && offset - entry.offset < entry.sge.length) return entry;
  }
  return std::nullopt;
}

/// Stores the stamp of the first data, or end of the stream, among the completions.
bool Connection::take_stamp(std::span<const ibv_wc> completions) {
  for (const ibv_wc& completion : completions) {
    const bool has_word = completion.status == IBV_WC_SUCCESS && (completion.wr_id & kReceiveId) != 0 &&
                          (completion.wc_flags & IBV_WC_WITH_IMM) != 0;
    if (!has_word || completion.vendor_err == 0) continue;
    const auto opcode = wire::decode_rs_message(std::bit_cast<wire::Be32>(completion.imm_data).host()).opcode;
    if (wire::is_rs_control(opcode) && opcode != wire::RsOpcode::ctrl) continue;
    stamp_.store(completion.vendor_err, std::memory_order_relaxed);
    return true;
  }
  return false;
}

std::uint32_t Connection::arrival_stamp() {
  if (!asked_for_stamps_.load(std::memory_order_relaxed) && !asked_for_stamps_.exchange(true))
    has_stamps_.store(device_.ask_for_stamps(*memory_.qp), std::memory_order_relaxed);
  return stamp_.load(std::memory_order_relaxed);
}

int Connection::arm() {
  // The lock keeps fork(2) out.
  const std::lock_guard guard(poll_lock_);
  // A fork(2) may have happened between two looks of the caller, whose last look claims the connection.
  if (suspended_.load(std::memory_order_relaxed)) {
    arms_on_resume_ = true;
  } else {
    arm_locked();
  }
  return channel_ ? channel_->fd : -1;
}

void Connection::arm_locked() {
  // After any other failure the queue pair makes no more completions, which the caller's last look finds.
  if (ibv_req_notify_cq(cq_.get(), 0) == EAGAIN) must_look_again_.store(true, std::memory_order_relaxed);
}

Listing Connection::list_at(const std::shared_ptr<ReadyMap>& map, std::uint32_t place) noexcept {
  const std::lock_guard guard(poll_lock_);
  if (suspended_.load(std::memory_order_relaxed)) return {};
  return device_.list_at(*memory_.qp, map, place);
}

void Connection::unlist() noexcept {
  const std::lock_guard guard(poll_lock_);
  if (!suspended_.load(std::memory_order_relaxed)) device_.unlist(*memory_.qp);
}

void Connection::resume() {
  const std::lock_guard guard(poll_lock_);
  suspended_.store(false, std::memory_order_release);
  if (std::exchange(arms_on_resume_, false)) arm_locked();
}

void Connection::woken() {
  if (!channel_) return;
  while (auto cq = device_.get_cq_event(*channel_)) device_.ack_cq_events(**cq, 1);
}

void Connection::fail(int error) {
  int none = 0;
  failure_.compare_exchange_strong(none, error, std::memory_order_acq_rel);
}

}  // namespace ringsock::rs
