#include "librsocket/message_receiver.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>

#include "core/base/log.h"
#include "librsocket/saved_connection.h"
#include "librsocket/work_requests.h"

namespace ringsock::rs {

namespace {

/// On one host an announcement costs little, so a connection begins with a quarter of its receive ring, which grows
/// when the peer sends more at once.
constexpr std::uint32_t kUsedBytesOnOneHost = 32768;

engine::ReceiveWindow window_for(const ConnectionCore& core) {
  const QueueSettings& settings = core.settings;
  if (!core.device.traits().is_embedded) return {settings.receive_ring, settings.receive_queue};
  return {settings.receive_ring, settings.receive_queue, kUsedBytesOnOneHost};
}

}  // namespace

MessageReceiver::MessageReceiver(ConnectionCore& core, SendRequests& requests, ReceiveRequests& receives,
                                 BufferTables& tables)
    : requests_(requests), receives_(receives), tables_(tables), core_(core), window_(window_for(core)) {}

void MessageReceiver::begin(std::byte* ring, std::uint32_t key) {
  ring_ = ring;
  key_ = key;
}

std::size_t MessageReceiver::receive(IoCursor& out, bool peek) {
  if (core_.holds_back()) [[unlikely]]
    return 0;
  return receive_anyway(out, peek);
}

std::size_t MessageReceiver::receive_anyway(IoCursor& out, bool peek) {
  std::size_t copied = receive_from_ring(out, peek, 0);
  if (!out.done() && core_.overflow.readable() != 0) [[unlikely]]
    copied += receive_overflow(out, peek, copied);
  // The peer may have filled what it was given while the application waits for more.
  if (peek) announce_if_due();
  return copied;
}

/// @param ahead  bytes that a peek has copied before
std::size_t MessageReceiver::receive_from_ring(IoCursor& out, bool peek, std::size_t ahead) {
  std::size_t copied = 0;
  while (!out.done()) {
    const auto span = window_.peek(peek ? ahead + copied : 0);
    if (span.length == 0) break;
    const std::size_t step = out.fill_from(ring_ + span.offset, span.length);
    copied += step;
    if (!peek) window_.consume(step);
  }
  core_.overflow.tell_read(window_.read_bytes());
  return copied;
}

/// Goes on behind the ring, of which a peek has copied `ahead` bytes. The bytes of the area are counted before the last
/// look at the ring, so all messages in front of them are found there.
std::size_t MessageReceiver::receive_overflow(IoCursor& out, bool peek, std::size_t ahead) {
  const std::uint64_t counted = core_.overflow.readable();
  const std::size_t copied = receive_from_ring(out, peek, ahead);
  const std::size_t taken = core_.overflow.copy_to(out, counted);
  if (!peek && taken > 0) consume_overflow(taken);
  return copied + taken;
}

void MessageReceiver::consume_overflow(std::uint64_t bytes) {
  bool must_tell = core_.overflow.consume(bytes);
  if (core_.overflow.is_limited()) {
    const std::lock_guard guard(core_.poll_lock);
    must_tell |= core_.overflow.release();
  }
  if (must_tell) requests_.send_look();
}

void MessageReceiver::give_back() {
  core_.overflow.give_back_at(Nanos::max());
  if (core_.is_suspended()) return;
  bool must_tell = false;
  {
    const std::lock_guard guard(core_.poll_lock);
    must_tell = core_.overflow.give_back();
  }
  if (must_tell) requests_.send_look();
}

bool MessageReceiver::look_into_overflow() {
  const auto found = core_.overflow.look(static_cast<std::uint16_t>(window_.arrived_messages()));
  if (core_.overflow.release(requests_.has_failed_work())) requests_.send_look();
  if (found) return *found;
  log_info("%s", found.error().where);
  core_.ends.fail(ECONNRESET);
  return true;
}

std::size_t MessageReceiver::receive(void* data, std::size_t length) {
  std::size_t copied = 0;
  if (core_.holds_back()) [[unlikely]]
    return 0;
  do {
    const auto span = window_.peek();
    const std::size_t step = std::min<std::size_t>(span.length, length - copied);
    if (step == 0) break;
    std::memcpy(static_cast<std::byte*>(data) + copied, ring_ + span.offset, step);
    window_.consume(step);
    copied += step;
  } while (copied < length);
  core_.overflow.tell_read(window_.read_bytes());
  if (copied < length && core_.overflow.readable() != 0) [[unlikely]] {
    IoCursor rest(static_cast<std::byte*>(data) + copied, length - copied);
    copied += receive_overflow(rest, false, 0);
  }
  return copied;
}

MessageReceiver::Piece MessageReceiver::lend(std::uint32_t most) {
  if (core_.is_suspended()) return {};
  const auto held = window_.hold(most);
  core_.overflow.tell_read(window_.read_bytes());
  return {{ring_ + held.span.offset, held.span.length}, held.segment};
}

void MessageReceiver::begin_announcing() {
  // A thread that writes to its own process may only read afterwards, as far as the receive ring has room.
  if (core_.device.rc().is_own_process(*core_.qp)) window_.use_all();
  announce_if_due();
}

bool MessageReceiver::announce_due() {
  if (core_.is_suspended()) [[unlikely]]
    return true;
  if (core_.ends.failure() != 0 || core_.ends.peer_disconnected() || requests_.is_held()) return true;
  while (const auto due = window_.due()) {
    const auto slot = requests_.take_control_slot();
    if (!slot) return false;  // due() stays true
    {
      const std::lock_guard guard(core_.poll_lock);
      post_owed_receives();
    }
    // Counted before it is sent, because another thread may poll the peer's answer before this one continues.
    window_.announced(*due);
    std::optional<wire::PeerSge> buffer;
    if (due->has_buffer) buffer = wire::PeerSge{address_of(ring_ + due->offset), key_, due->length};
    if (Status posted = tables_.announce(*slot, due->limit, buffer); !posted) return true;
  }
  return true;
}

bool MessageReceiver::post_owed_receives() {
  if (receives_.post_owed() || core_.ends.expects_flush()) return false;
  core_.ends.note_flush(core_.device.traits().works_in_background);
  return true;
}

void MessageReceiver::save(SavedConnection& saved) const { saved.receive_window = window_.save(); }

Status MessageReceiver::restore_window(const SavedConnection& saved) { return window_.restore(saved.receive_window); }

}  // namespace ringsock::rs
