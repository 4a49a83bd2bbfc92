// An established TCP connection on a ring: the engine, fed with the ring's segments.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/base/socket_address.h"
#include "core/engine/tcp/connection.h"
#include "core/ethernet/destination.h"
#include "core/ethernet/packet_sink.h"
#include "core/ethernet/ring.h"
#include "core/runtime/endpoint.h"
#include "core/runtime/ring_choice.h"
#include "libvmacompat/tcp/detour.h"
#include "libvmacompat/tcp/tcp_trace.h"

namespace ringsock::vma {

class TcpEvents;

/// Takes a connection out of the kernel, carries it, and puts it back (README.md).
///
/// Threads: any, unless stated otherwise. Lock order: the ring's receive lock, this object's lock, the ring's send
/// lock. So no function that polls or leaves a ring may be called with the lock held.
class CarriedConnection final : public ethernet::PacketSink {
 public:
  /// @param events  tells programs that poll the ring
  CarriedConnection(runtime::Endpoint& endpoint, TcpEvents& events);
  CarriedConnection(const CarriedConnection&) = delete;
  CarriedConnection& operator=(const CarriedConnection&) = delete;
  ~CarriedConnection();

  // -- moving; the caller lets one thread at a time in
  /// The choice of the ring. An accepted connection has that of its listener.
  [[nodiscard]] runtime::RingChoice& choice() { return *choice_; }
  void share_choice(const CarriedConnection& listener) { choice_.emplace(*listener.choice_); }
  /// Finds a ring for the connection from `local` to `peer` of the kernel socket `fd`. Returns false when the kernel
  /// has to carry it.
  /// @param is_accepted  the handshake must have come by the interface of the ring
  bool find_way(int fd, const SocketAddress& local, const SocketAddress& peer, bool is_accepted);
  /// Takes the connection over. Errors: those of take_out(), of attaching to the ring; the kernel goes on.
  Status take_over(int fd);
  /// Gives the connection back to `fd`. Errors: EBUSY it has ended, or the kernel has no way to the peer now: it stays;
  /// those of put_back(), after which the connection is lost.
  Status give_back(int fd);
  /// Follows options of the kernel's socket that change the headers (TcpOptionEffect::header). Returns false when the
  /// connection must go back to the kernel.
  bool follow_options(int fd);
  /// Leaves the ring; the connection has ended, or belongs to the parent of a forked child.
  void leave_ring() noexcept;
  void forget_after_fork() noexcept;

  // -- the application's calls
  /// Calls `use(engine, now)` while nothing else uses the engine, and sends what that has the engine send. Returns
  /// nothing when the ring does not carry the connection any more.
  template <class Use>
  auto with_engine(Use use) -> std::optional<decltype(use(std::declval<engine::tcp::TcpConnection&>(), Nanos()))> {
    const std::lock_guard guard(lock_);
    if (phase_ != Phase::running) return std::nullopt;
    const Nanos now = monotonic_now();
    auto answer = use(engine_, now);
    flush(now);
    return answer;
  }
  /// Prepares a segment with that payload up to the point at which the device would get it. Only inside with_engine().
  /// Returns 0 or an errno value.
  int rehearse(std::span<const iovec> payload, std::size_t bytes);
  /// Takes what the ring has, and runs timers that are due. Not inside with_engine().
  void progress() noexcept;
  /// Both ends as packets have them. They do not change once the connection is on the ring.
  [[nodiscard]] const SocketAddress& local() const { return local_; }
  [[nodiscard]] const SocketAddress& peer() const { return peer_; }
  [[nodiscard]] ethernet::Ring& ring() const { return *ring_; }
  [[nodiscard]] const std::shared_ptr<ethernet::Ring>& shared_ring() const { return ring_; }

  // -- the service thread's
  /// Runs due timers and follows changes of the network. Returns false when the connection must go back to the kernel.
  bool look(Nanos now);
  /// Returns whether the peer's segments come by another interface to the placeholder `fd`: the ring gets none of them.
  bool has_detour(int fd, Nanos now);
  /// Writes the next segments to VMA's log, at the level info.
  void trace(std::uint32_t segments);
  /// Returns the number of looks at the ring by the application's threads.
  [[nodiscard]] std::uint64_t polls() const { return polls_.load(std::memory_order_relaxed); }

  // -- PacketSink
  [[nodiscard]] bool accepts(const wire::EndName& source) const noexcept override { return source == source_; }
  ethernet::Delivery deliver(ethernet::Incoming& incoming, const wire::EndName& source) noexcept override;
  runtime::Endpoint& endpoint() noexcept override { return endpoint_; }
  [[nodiscard]] bool shares_port() const noexcept override { return false; }
  [[nodiscard]] bool has_waiting() const noexcept override { return false; }

 private:
  enum class Phase : std::uint8_t {
    away,     ///< the kernel carries it
    moving,   ///< segments are kept
    running,  ///< the engine carries it
  };

  // With the lock held:
  void flush(Nanos now);
  void emit(const engine::tcp::SegmentOut& segment);
  void feed(const ethernet::Packet& packet, Nanos now);
  bool note_events() noexcept;

  Status begin(const engine::tcp::Established& state);
  void set_phase(Phase phase);
  void return_kept();
  std::vector<std::string> take_trace();
  void write_trace() noexcept;
  void tell_agent(std::uint8_t state) noexcept;
  void play_end_of_stream(const engine::tcp::Established& state) const;
  std::shared_ptr<ethernet::Destination> way_by(const ethernet::SendOptions& options);
  bool go_by(const ethernet::SendOptions& options);
  [[nodiscard]] bool can_go_back() const;

  runtime::Endpoint& endpoint_;
  TcpEvents& events_;
  std::shared_ptr<ethernet::Ethernet> ethernet_;
  std::optional<runtime::RingChoice> choice_;
  SocketAddress kernels_local_, kernels_peer_;  ///< as the socket has them: IPv4-mapped, perhaps
  SocketAddress local_, peer_;                  ///< as packets have them
  wire::EndName source_;
  std::shared_ptr<ethernet::Ring> ring_;  ///< does not change once the connection is on it
  bool is_attached_ = false;
  std::uint32_t agents_id_ = 0;  ///< by which vmad(8) knows the connection; 0: it does not
  bool reuses_address_ = false;  ///< SO_REUSEADDR, which TCP_REPAIR changes

  Mutex lock_;  ///< guards these
  Phase phase_ = Phase::away;
  engine::tcp::TcpConnection engine_;
  ethernet::SendOptions options_;
  std::shared_ptr<ethernet::Destination> way_;
  std::vector<ethernet::Arrival> kept_;
  std::unique_ptr<TcpTrace> trace_;  ///< null: no segments are traced

  Detour detour_;  ///< the service thread's

  std::atomic<bool> is_traced_{false};
  std::atomic<Nanos> next_timer_{Nanos::max()};
  std::atomic<std::uint64_t> polls_{0};
};

}  // namespace ringsock::vma
