// One established rsocket connection: its queue pair, its buffers, and the messages over it.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "core/base/result.h"
#include "core/verbs/connection_manager.h"
#include "core/verbs/handles.h"
#include "core/wire/rs_connect.h"
#include "core/wire/rs_message.h"
#include "librsocket/arrival_stamps.h"
#include "librsocket/buffer_tables.h"
#include "librsocket/completion_events.h"
#include "librsocket/connection_core.h"
#include "librsocket/connection_listing.h"
#include "librsocket/message_receiver.h"
#include "librsocket/message_sender.h"
#include "librsocket/queue_pair_memory.h"
#include "librsocket/queue_settings.h"
#include "librsocket/receive_requests.h"

namespace ringsock::runtime {
class ForkLocks;
}

namespace ringsock::rs {

/// The wire protocol of the fact sheet, section 2, over one RC queue pair. It makes the parts, and gives them what the
/// queue pair completes.
///
/// Bytes for which the peer has no room or credits go to its overflow area (core/engine/stream/overflow.h), where both
/// ends are ringsock's on one host. Such bytes are read behind those of the ring.
///
/// Threads: the owner serialises senders (sending()) with one lock and readers (receiving()) with another; any thread
/// may call everything else. poll() serialises itself.
class Connection {
 public:
  /// Makes the resources on `id` (after route_resolved, or on a connect request) and posts the receives.
  static Result<std::unique_ptr<Connection>> create(verbs::ConnectionId& id, const QueueSettings& settings);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// Returns the data for the request or the reply.
  [[nodiscard]] wire::RsConnectMore connect_data() const;
  /// Processes the peer's data. Nothing may be sent or polled before. Error: EPROTO for invalid sizes.
  Status start(const wire::RsConnect& peer, const std::optional<wire::RsOverflow>& overflow = std::nullopt);
  /// Begins to use the overflow areas, if both ends have one. Call it once the connection is made, before it is used.
  /// @param other_user  verbs::ConnectionId::other_user()
  void open_overflow(std::optional<uid_t> other_user);
  /// Called when the connection manager reports that the peer is ready: sends what SendRequests::hold() holds back.
  void established();

  // -- the parts
  [[nodiscard]] MessageSender& sending() { return sending_; }
  [[nodiscard]] MessageReceiver& receiving() { return receiving_; }
  [[nodiscard]] SendRequests& requests() { return sending_.requests(); }
  [[nodiscard]] BufferTables& tables() { return tables_; }
  [[nodiscard]] CompletionEvents& completions() { return completions_; }
  [[nodiscard]] ConnectionListing& listing() { return listing_; }
  [[nodiscard]] ConnectionEnds& ends() { return core().ends; }
  [[nodiscard]] OverflowAreas& overflow() { return core().overflow; }
  [[nodiscard]] verbs::Device& device() { return core().device; }
  [[nodiscard]] const QueueSettings& settings() { return core().settings; }

  /// Adds the cache lines that each message uses.
  void add_hot_lines(HotLines& lines) const;

  // -- completions
  /// Processes completions. Returns true when something changed: bytes or space arrived, the peer shut down, the
  /// connection failed.
  bool poll();
  /// Requests a completion notification. Returns CompletionEvents::fd(). While suspended, arming is postponed to
  /// resume().
  int arm();
  /// Consumes the notification.
  void woken() { completions_.woken(device()); }
  /// Returns the peer's order_stamp() (clock.h) of the first data, or end, that the latest poll() brought, 0 if
  /// unknown. From the first call on the peer is asked for stamps.
  [[nodiscard]] std::uint32_t arrival_stamp() { return stamps_.latest(device(), *core().qp); }

  /// Registers memory in this connection's protection domain, so that no other peer can use the key.
  Result<verbs::Mr> register_memory(void* data, std::size_t length, int access) {
    return device().reg_mr(*pd_, data, length, access);
  }

  /// Tells the peer whether bytes are left unread, because this process ends, or gives up its copy of the connection.
  /// Does not say which while a thread polls. Threads: any.
  /// @param id        the connection's
  /// @param is_alone  no other process has the connection: the peer's next message is to find out at once
  void tell_end(const verbs::ConnectionId& id, bool is_alone);

  /// Returns whether the peer's SHUTDOWN or DISCONNECT has come to a suspended connection. Takes nothing. Threads: any.
  [[nodiscard]] bool has_end_waiting(const verbs::ConnectionId& id);

  // -- fork(2)
  void add_fork_locks(runtime::ForkLocks& locks);
  /// suspend() makes all functions do nothing until resume(), because another process may be using the connection. All
  /// locks must be held, or StateOf::save_and_suspend() does it. Any thread may call resume(), which arms if arm() was
  /// called meanwhile; call poll() afterwards.
  void suspend() { core().set(ConnectionCore::kSuspended, true, std::memory_order_relaxed); }
  void resume();

 private:
  friend class StateOf;
  Connection(verbs::Device& device, const QueueSettings& settings);
  Status make_resources(verbs::ConnectionId& id);
  Status make_queue_pair(verbs::ConnectionId& id, ibv_qp_cap& capacity);
  Result<SendRing> make_send_ring();

  /// What one poll() has found.
  struct Polled {
    bool changed = false;
    bool has_stamp = false;
  };
  bool take_batch(std::span<ibv_wc> room, Polled& polled);
  bool handle(const ibv_wc& completion);
  bool handle_failed(const ibv_wc& completion);
  void note_end_of_link(std::uint32_t cause);
  bool handle_received(const ibv_wc& completion);
  bool handle_message(std::uint32_t word);
  bool handle_control(const wire::RsMessage& message);

  [[nodiscard]] ConnectionCore& core() { return sending_.core(); }
  [[nodiscard]] const ConnectionCore& core() const { return sending_.core(); }

  // Parents come first: members are destroyed in reverse order. Each message uses the first line, and parts of
  // sending_, receives_ and receiving_, whose members are ordered by use.
  verbs::Pd pd_;
  CompletionEvents completions_;
  ArrivalStamps stamps_;
  MessageSender sending_;
  QueuePairMemory memory_;
  ReceiveRequests receives_;
  BufferTables tables_;
  MessageReceiver receiving_;
  ConnectionListing listing_;
};

}  // namespace ringsock::rs
