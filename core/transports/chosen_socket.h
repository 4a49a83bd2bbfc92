// A stream socket of an unmodified program: the kernel's socket, and at most one way beside it.
#pragma once

#include <memory>

#include "core/config/vma_line.h"
#include "core/transports/choice.h"
#include "core/transports/connecting.h"
#include "core/transports/listening_beside.h"
#include "core/transports/mover.h"
#include "core/transports/passed_on.h"
#include "core/transports/short_connections.h"
#include "core/transports/way.h"

namespace ringsock::transports {

class ChosenSocket;

/// Makes the ways of one kind, and tells which addresses the rules leave to them. Never destroyed. Threads: any.
class WayMaker {
 public:
  /// Errors: std::bad_alloc.
  [[nodiscard]] virtual std::unique_ptr<Way> make_way(ChosenSocket& socket, int domain, int fd) const = 0;
  /// Returns what moves connections of this socket, or null where they are made by the way from the start.
  [[nodiscard]] virtual std::unique_ptr<Mover> make_mover(ChosenSocket& socket, Way& way) const = 0;
  /// Returns whether the rules permit the way for a connection to `address`, or a listener on it.
  /// @param role  tcp_client or tcp_server
  [[nodiscard]] virtual bool permits(int domain, const SocketAddress& address, config::VmaRole role) const = 0;
  /// Returns what decides about connections that end soon, or null where the way makes these, too.
  [[nodiscard]] virtual ShortConnections* short_connections() const { return nullptr; }
  /// Returns whether a connection by such a way, in any process of the host, has the port, which the kernel does not
  /// know.
  [[nodiscard]] virtual bool has_port_unseen(const SocketAddress& /*address*/) const { return false; }

 protected:
  ~WayMaker() = default;
};

/// A kernel TCP socket that may turn into a way under the same descriptor number. connect() decides. When the rules and
/// the way permit the destination, the connection uses the way. Otherwise, and when that fails, the kernel socket is
/// connected, and the descriptor leaves the table for good (Connecting). listen() opens both, and accept() takes
/// clients from both (ListeningBeside).
///
/// With a mover a connection stays with the kernel until it is used.
///
/// Before the decision, bind() and options go to the kernel socket, so its answers are those of Linux. Options are
/// repeated for the way.
class ChosenSocket final : public PassedOn<ChosenSocket> {
 public:
  /// @param fd  the kernel socket, which the caller enters into the table
  ChosenSocket(const WayMaker& maker, int domain, int fd);

  Status bind(const sockaddr* address, socklen_t length) override;
  Status listen(int backlog) override { return listening_.listen(backlog); }
  Result<int> accept(SocketAddress& peer, int flags) override { return listening_.accept(peer, flags); }
  Status connect(const sockaddr* address, socklen_t length) override { return connecting_.connect(address, length); }
  Status shutdown(int how) override;
  Result<SocketAddress> local_name() override;
  Result<SocketAddress> peer_name() override;
  Status set_option(int level, int name, const void* value, socklen_t length) override;
  Status get_option(int level, int name, void* value, socklen_t* length) override;
  Result<ssize_t> receive(msghdr& message, int flags) override;
  Result<ssize_t> send(const msghdr& message, int flags) override;
  Result<ssize_t> receive_bytes(void* data, std::size_t length, int flags) override;
  Result<ssize_t> send_bytes(const void* data, std::size_t length, int flags) override;
  Result<ssize_t> receive_by(runtime::BytesTaker& taker, std::span<std::byte> room, int flags) override;

  std::uint32_t ready() noexcept override;
  runtime::WaitFds arm() noexcept override;
  void woken() noexcept override;
  Nanos deadline() noexcept override;
  [[nodiscard]] bool asks_kernel() const noexcept override;
  [[nodiscard]] bool rings_for_each_arrival() const noexcept override { return state() == State::both; }

  void closed() noexcept override;
  [[nodiscard]] bool is_kernels_too() const noexcept override { return is_kernel_socket(); }

  runtime::SocketStatistics* statistics() noexcept override { return way_->statistics(); }
  Way* way() noexcept override { return way_.get(); }
  ChosenSocket* as_chosen_socket() noexcept override { return this; }
  void add_fork_locks(runtime::ForkLocks& locks) override;
  void after_fork(ForkSide side) noexcept override;

  /// Carries out F_SETFL. The kernel socket gets the flags, too, but a listener's stays non-blocking.
  void set_status_flags(int flags);
  /// Leaves a socket or listener that is on no way yet to the kernel for good. A connection on a way stays there. Not
  /// inside a read-side section.
  void give_up_way();
  /// Returns whether the descriptor still means the kernel socket.
  [[nodiscard]] bool is_kernel_socket() const { return state() != State::on_way; }
  [[nodiscard]] bool is_connecting_by_way() const { return state() == State::on_way && way_->is_connecting(); }
  /// Returns whether clients may come by the way.
  [[nodiscard]] bool listens_by_way() const { return state() == State::both; }
  /// Returns whether a fork(2) has given the undecided socket to other processes. What these make of it only the kernel
  /// knows, so calls that depend on that fail with EIO, and begin anew at the kernel's socket (HandOvers::follow()).
  [[nodiscard]] bool was_forked_undecided() const { return choice_.is_undecided() && values.is_shared(); }

  /// Returns the state, which only the socket itself and its mover change.
  [[nodiscard]] Choice& choice() { return choice_; }

 private:
  friend class PassedOn<ChosenSocket>;
  friend class Connecting;
  friend class ListeningBeside;
  using State = Choice::State;

  [[nodiscard]] const runtime::Roles& roles() const { return by_way_; }
  [[nodiscard]] State state() const { return choice_.state(); }
  [[nodiscard]] int descriptor() const { return way_->descriptor(); }

  void leave();
  [[nodiscard]] bool is_left_to_family() noexcept;

  const WayMaker& maker_;
  const int domain_;
  ListeningBeside listening_;
  Connecting connecting_;
  std::unique_ptr<Mover> mover_;  ///< null: connections are made by the way
  Choice choice_;
  const std::unique_ptr<Way> way_;  ///< its destructor takes the socket out of the registry of endpoints
  const runtime::Roles by_way_;
};

}  // namespace ringsock::transports
