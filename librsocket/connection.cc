#include "librsocket/connection.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <mutex>
#include <span>
#include <utility>

#include "core/base/lock_until.h"
#include "core/base/log.h"
#include "core/runtime/fork_registry.h"
#include "librsocket/work_requests.h"

namespace ringsock::rs {

namespace {

/// Limits the work of one call for a peer that never stops sending.
constexpr int kMaxBatchesPerPoll = 16;

/// Returns the inline size to request: the maximum where inline data costs nothing extra; on a real device each byte
/// makes the queue's entries longer. It includes the payload of control messages, if the device permits.
std::uint32_t inline_request(const verbs::Device& device, const QueueSettings& settings) {
  if (takes_all_inline(device)) return device.traits().max_inline_data;
  const auto control = static_cast<std::uint32_t>(sizeof(wire::PeerIomap));
  return std::min(std::max(settings.inline_bytes, control), device.traits().max_inline_data);
}

/// Returns the settings, reduced to the limits of the device.
Result<QueueSettings> fitted_to(verbs::Device& device, QueueSettings settings, unsigned extra_sends,
                                unsigned extra_receives) {
  auto attr = device.query_device();
  if (!attr) return attr.error();
  const unsigned per_message = device.traits().has_write_with_immediate ? 1 : 2;
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

}  // namespace

Result<std::unique_ptr<Connection>> Connection::create(verbs::ConnectionId& id, const QueueSettings& wanted) {
  auto settings = fitted_to(id.device(), wanted, SendRequests::kEndSlots, ReceiveRequests::kControlReceives);
  if (!settings) return settings.error();
  const verbs::Device& device = id.device();
  const bool has_overflow = settings->receive_overflow != 0 && settings->send_overflow != 0 &&
                            device.traits().is_embedded && takes_all_inline(device) &&
                            device.traits().has_write_with_immediate;
  if (!has_overflow) settings->receive_overflow = 0;
  std::unique_ptr<Connection> connection(new Connection(id.device(), *settings));
  if (Status made = connection->make_resources(id); !made) return made.error();
  return connection;
}

Connection::Connection(verbs::Device& device, const QueueSettings& settings)
    : sending_(device, settings),
      receives_(settings.receive_queue, !device.traits().has_write_with_immediate),
      tables_(core(), requests()),
      receiving_(core(), requests(), receives_, tables_),
      listing_(*this, core(), receiving_) {}

Connection::~Connection() {
  if (!overflow().are_open()) return;
  if (!core().is_suspended()) {
    overflow().close(device(), memory_.qp());
  } else if (overflow().were_used()) {
    device().rc().leaves_traces(memory_.qp());
  }
}

Status Connection::make_resources(verbs::ConnectionId& id) {
  auto pd = device().alloc_pd();
  if (!pd) return pd.error();
  pd_ = *std::move(pd);
  const unsigned looks = settings().receive_overflow != 0 ? SendRequests::kLookSlots : 0;
  const unsigned sends = settings().send_queue + SendRequests::kEndSlots + looks;
  if (Status made = completions_.create(device(), sends + receives_.receives(), this); !made) return made;
  ibv_qp_cap capacity{};
  if (Status made = make_queue_pair(id, capacity); !made) return made;
  auto ring = make_send_ring();
  if (!ring) return ring.error();
  const bool control_inline = capacity.max_inline_data >= sizeof(wire::PeerIomap);
  sending_.begin(capacity, control_inline, *std::move(ring));
  tables_.begin(memory_.tables());
  receiving_.begin(memory_.ring(), memory_.key());
  const SendRing& local = requests().ring();
  if (receives_.word_bytes() == 0) return receives_.begin(device().rc(), memory_.qp(), {}, 0);
  return receives_.begin(device().rc(), memory_.qp(), local.extra().subspan(SendRequests::kScratchBytes), local.key());
}

/// @param capacity  becomes what is granted
Status Connection::make_queue_pair(verbs::ConnectionId& id, ibv_qp_cap& capacity) {
  const bool words_by_send = requests().has_words_by_send();
  QueueSettings& settings = core().settings;
  ibv_qp_init_attr attr{};
  attr.send_cq = attr.recv_cq = completions_.get();
  attr.qp_type = IBV_QPT_RC;
  attr.cap.max_send_wr = (settings.send_queue + SendRequests::kEndSlots) * (words_by_send ? 2 : 1);
  attr.cap.max_recv_wr = receives_.receives();
  attr.cap.max_send_sge = takes_all_inline(device()) ? 16 : 2;
  attr.cap.max_recv_sge = 1;
  attr.cap.max_inline_data = inline_request(device(), settings);
  if (Status made = memory_.create(id, *pd_, attr, settings, SendRequests::kLookSlots); !made) return made;
  core().qp = &memory_.qp();
  if (settings.receive_overflow != 0) overflow().offer(memory_.overflow_words(), memory_.overflow_area(settings));

  capacity = attr.cap;
  capacity.max_inline_data = std::min(attr.cap.max_inline_data, device().traits().max_inline_data);
  if (words_by_send && capacity.max_inline_data < sizeof(std::uint32_t))
    return Error{ENOTSUP, "rsocket: no inline message words"};
  if (takes_all_inline(device()) || settings.inline_bytes != 0)
    settings.inline_bytes = std::min<std::uint32_t>(capacity.max_inline_data, INT32_MAX);
  return ok();
}

/// Makes the memory that the peer cannot access: for data to send, and for words that arrive by SEND.
Result<SendRing> Connection::make_send_ring() {
  if (takes_all_inline(device()) && !requests().has_words_by_send()) return SendRing();
  return SendRing::create(device(), *pd_, settings().send_ring, SendRequests::kScratchBytes + receives_.word_bytes());
}

wire::RsConnectMore Connection::connect_data() const {
  const ConnectionCore& core = sending_.core();
  const std::uint32_t key = memory_.key();
  wire::RsConnectMore more{};
  wire::RsConnect& data = more.connect;
  data.version = wire::kRsVersion;
  data.flags = wire::kRsLocalOrderFlag | wire::kRsHasIomap;
  data.credits = wire::Be16(core.settings.receive_queue);
  data.iomap_size_scaled = wire::encode_iomap_size(core.settings.iomap_entries);
  data.target_sgl = {wire::Be64(address_of(memory_.tables())), wire::Be32(key), wire::Be32(BufferTables::kSglEntries)};
  data.first_buffer = {wire::Be64(address_of(memory_.ring())), wire::Be32(key), wire::Be32(receiving_.first_bytes())};
  more.overflow = core.overflow.offered();
  return more;
}

Status Connection::start(const wire::RsConnect& peer, const std::optional<wire::RsOverflow>& overflow) {
  core().overflow.take_offer(peer, overflow);
  if (Status usable = tables_.start(peer); !usable) return usable;
  const wire::PeerSge first{peer.first_buffer.addr.host(), peer.first_buffer.key.host(),
                            peer.first_buffer.length.host()};
  return sending_.start(first, peer.credits.host());
}

void Connection::open_overflow(std::optional<uid_t> other_user) {
  overflow().open(device(), memory_.qp(), settings().send_overflow, other_user);
}

void Connection::established() {
  // iWARP (RFC 5044, 7.1.2): the passive side must not send before the active side has. Every rsocket that waits for
  // data first announces its buffer, so a message comes.
  if (requests().has_words_by_send()) return;
  const std::lock_guard guard(core().poll_lock);
  sending_.let_go_of_hold();
}

void Connection::add_hot_lines(HotLines& lines) const {
  lines.add(this, &core().overflow);
  sending_.add_hot_lines(lines);
  receives_.add_hot_lines(lines);
  receiving_.add_hot_lines(lines);
  core().device.rc().add_hot_lines(*core().qp, lines);
}

// -- completions

/// Handles the completions that fit into `room`, and that are there. Returns whether there may be more.
bool Connection::take_batch(std::span<ibv_wc> room, Polled& polled) {
  const int count = ibv_poll_cq(completions_.get(), static_cast<int>(room.size()), room.data());
  if (count < 0) {
    ends().fail(EIO);
    polled.changed = true;
    return false;
  }
  if (count == 0) return false;
  const auto completions = room.first(static_cast<std::size_t>(count));
  if (!receives_.has_room_for(count)) polled.changed |= receiving_.post_owed_receives();
  for (const ibv_wc& completion : completions) polled.changed |= handle(completion);
  if (stamps_.has() && !polled.has_stamp) polled.has_stamp = stamps_.take(completions);
  if (receives_.has_control()) polled.changed |= receiving_.post_owed_receives();
  return completions.size() == room.size();
}

bool Connection::poll() {
  constexpr std::size_t kFew = 8;  // the caller may be a handler on a small signal stack
  const std::lock_guard guard(core().poll_lock);
  if (core().is_suspended()) [[unlikely]]
    return false;
  std::array<ibv_wc, kFew> few;
  Polled polled;
  const auto take_many = [&]() __attribute__((noinline)) {
    std::array<ibv_wc, ReceiveRequests::kBatch> many;
    for (int batches = 0; batches < kMaxBatchesPerPoll; ++batches) {
      if (!take_batch(many, polled)) return polled.changed;
    }
    return true;  // there is more: a thread that is about to sleep must look again
  };
  return take_batch(few, polled) ? take_many() : polled.changed;
}

bool Connection::handle(const ibv_wc& completion) {
  if (completion.status != IBV_WC_SUCCESS) [[unlikely]]
    return handle_failed(completion);
  if ((completion.wr_id & kReceiveId) == 0) {
    requests().finish(completion.wr_id);
    return true;
  }
  receives_.note_used(completion.wr_id);
  return handle_received(completion);
}

namespace {
/// Of a peer that has ended.
bool has_peer_left_bytes_unread(const MessageSender& sending, const OverflowAreas& overflow, bool was_asleep) {
  const engine::StreamEnd end = overflow.end_of_peer(sending.sent_to_ring(), was_asleep);
  if (end != engine::StreamEnd::unknown) return end == engine::StreamEnd::unread;
  // It is certain when the peer has left no room for more.
  return !sending.can_send() || !overflow.is_empty();
}

/// Returns whether the peer ended the connection by a reset, or as a process that has left bytes unread: the kernel
/// resets the connections of such a process, and ends the others in order.
/// @param cause  ibv_wc::vendor_err of a flush: why the link has ended
bool is_reset(const MessageSender& sending, const OverflowAreas& overflow, std::uint32_t cause) {
  // What came too late is not counted where it is known.
  switch (cause) {
    case verbs::kVendorErrPeerEnded: return has_peer_left_bytes_unread(sending, overflow, false);
    case verbs::kVendorErrPeerEndedAsleep:
      return has_peer_left_bytes_unread(sending, overflow, sending.unheard_bytes() == 0);
    default: return true;
  }
}
}  // namespace

bool Connection::handle_failed(const ibv_wc& completion) {
  requests().note_failed_work();
  receiving_.look_into_overflow();  // what the peer wrote before its end
  // A failed completion only has a valid wr_id and status.
  if ((completion.wr_id & (kControlId | kEndId)) != 0) requests().finish(completion.wr_id);
  if (ends().expects_flush()) {
    note_end_of_link(completion.vendor_err);
    return true;
  }
  if (completion.vendor_err == verbs::kVendorErrPeerEnded ||
      completion.vendor_err == verbs::kVendorErrPeerEndedAsleep) {
    // A connection whose both sides have ended is not reset any more.
    if (!ends().both_shut_down() && is_reset(sending_, core().overflow, completion.vendor_err)) {
      ends().fail(ECONNRESET);
    } else {
      ends().peer_left();
    }
    return true;
  }
  const bool is_data = (completion.wr_id & (kReceiveId | kControlId | kEndId | kLookId)) == 0;
  // The loss of bytes that were reported as sent is always a reset.
  const bool in_background = device().traits().works_in_background;
  const bool is_end =
      completion.status == IBV_WC_WR_FLUSH_ERR || (completion.status == IBV_WC_RETRY_EXC_ERR && !in_background);
  if (is_end && !is_data) {
    // On the embedded device messages that the peer sent before its end complete before the flushed receives.
    if (in_background || (completion.wr_id & kReceiveId) != 0) ends().note_flush(in_background);
    return true;
  }
  if (ends().failure() == 0)
    log_info("rsocket: a work request failed: status %d, vendor error %#x", static_cast<int>(completion.status),
             completion.vendor_err);
  const bool refused = completion.status == IBV_WC_REM_ACCESS_ERR || completion.status == IBV_WC_REM_INV_REQ_ERR ||
                       completion.status == IBV_WC_REM_OP_ERR || completion.status == IBV_WC_LOC_PROT_ERR;
  // The peer has not acknowledged anything for long. Without a network in between its process has ended.
  const bool unheard = completion.status == IBV_WC_RETRY_EXC_ERR && in_background;
  ends().fail(refused ? EIO : unheard ? ETIMEDOUT : ECONNRESET);
  return true;
}

/// As in TCP, what reaches a peer that has closed the connection, or that it has left unread, comes back as a reset.
/// The link of a connection that this side has ended first tells of the peer's end.
/// @param cause  ibv_wc::vendor_err of the flush
void Connection::note_end_of_link(std::uint32_t cause) {
  if (device().traits().works_in_background) return;
  if (ends().is_half_open()) {
    const engine::StreamEnd end = core().overflow.end_of_peer(sending_.sent_to_ring(), false);
    if (end == engine::StreamEnd::unread) ends().fail(ECONNRESET);
  } else if (ends().failure() == 0) {
    if (!ends().has_peer_ended() && is_reset(sending_, core().overflow, cause)) ends().fail(ECONNRESET);
    ends().peer_left();
  }
}

bool Connection::handle_received(const ibv_wc& completion) {
  if (requests().is_held()) [[unlikely]]
    sending_.let_go_of_hold();
  if ((completion.wc_flags & IBV_WC_WITH_IMM) != 0) [[likely]]
    return handle_message(std::bit_cast<wire::Be32>(completion.imm_data).host());
  if (requests().has_words_by_send() && completion.byte_len == sizeof(std::uint32_t))
    return handle_message(receives_.word(completion.wr_id));
  log_info("rsocket: the peer sent something that is no message");
  ends().fail(ECONNRESET);
  return true;
}

bool Connection::handle_message(std::uint32_t word) {
  const auto message = wire::decode_rs_message(word);
  if (wire::is_rs_control(message.opcode)) return handle_control(message);
  if (ends().refuses_data() && message.value != 0) [[unlikely]] {
    ends().fail(ECONNRESET);
    return true;
  }
  if (Status counted = receiving_.arrived(message.value); !counted) [[unlikely]] {
    log_info("%s", counted.error().where);
    ends().fail(ECONNRESET);
  }
  return true;
}

bool Connection::handle_control(const wire::RsMessage& message) {
  receives_.note_control();
  switch (message.opcode) {
    case wire::RsOpcode::sgl:
      sending_.set_credits(message.value);
      if (const auto buffer = tables_.take_announced()) {
        if (Status added = sending_.add_buffer(*buffer); !added) {
          log_info("%s", added.error().where);
          ends().fail(ECONNRESET);
        }
      }
      return true;
    case wire::RsOpcode::iomap_sgl: tables_.take_iomap(message.value); return true;
    case wire::RsOpcode::ctrl:
      if (message.value == static_cast<std::uint32_t>(wire::RsControl::disconnect)) ends().peer_left();
      if (message.value == static_cast<std::uint32_t>(wire::RsControl::shutdown)) ends().peer_stopped();
      if (message.value == static_cast<std::uint32_t>(wire::RsControl::look)) receiving_.look_into_overflow();
      return true;
    default: return false;
  }
}

int Connection::arm() {
  // The lock keeps fork(2) out.
  const std::lock_guard guard(core().poll_lock);
  // A fork(2) may have happened between two looks of the caller, whose last look claims the connection.
  if (core().is_suspended()) {
    completions_.arm_on_resume();
  } else {
    completions_.arm();
  }
  return completions_.fd();
}

namespace {
bool is_data(std::uint32_t immediate) {
  const wire::RsMessage message = wire::rs_message_of(immediate);
  return message.opcode == wire::RsOpcode::data && message.value != 0;
}

bool is_end(std::uint32_t immediate) {
  const wire::RsMessage message = wire::rs_message_of(immediate);
  return message.opcode == wire::RsOpcode::ctrl &&
         (message.value == static_cast<std::uint32_t>(wire::RsControl::shutdown) ||
          message.value == static_cast<std::uint32_t>(wire::RsControl::disconnect));
}
}  // namespace

bool Connection::has_end_waiting(const verbs::ConnectionId& id) {
  const std::lock_guard guard(core().poll_lock);
  return id.has_waiting(is_end);
}

void Connection::tell_end(const verbs::ConnectionId& id, bool is_alone) {
  if (is_alone) device().rc().arm_for_good(*core().qp);
  constexpr Nanos kPatience = std::chrono::milliseconds(50);  // the service thread may poll at this moment
  const auto guard = lock_until(core().poll_lock, monotonic_now() + kPatience);
  if (!guard) return;
  overflow().tell_end(receiving_.read_from_ring(), receiving_.readable() > 0 || id.has_waiting(is_data));
}

// -- fork(2)

void Connection::add_fork_locks(runtime::ForkLocks& locks) { locks.add_biased(2, core().poll_lock); }

void Connection::resume() {
  const std::lock_guard guard(core().poll_lock);
  core().set(ConnectionCore::kSuspended, false, std::memory_order_release);
  completions_.resume();
}

}  // namespace ringsock::rs
