// An endpoint with one way and no kernel socket beside it.
#pragma once

#include <utility>

#include "core/runtime/fork_registry.h"
#include "core/transports/passed_on.h"
#include "core/transports/way.h"

namespace ringsock::transports {

/// Passes every call on to its way, of which the type is known, so that a call costs no second look-up of a virtual
/// function.
template <class TheWay>
class EndpointOf final : public PassedOn<EndpointOf<TheWay>> {
 public:
  template <class... Arguments>
  explicit EndpointOf(Arguments&&... arguments) : way_(*this, std::forward<Arguments>(arguments)...) {
    runtime::fork_registry().enter(*this);
  }

  Way* way() noexcept override { return &way_; }
  [[nodiscard]] TheWay& the_way() { return way_; }

  Result<ssize_t> receive(msghdr& message, int flags) override { return way_.transfer().receive(message, flags); }
  Result<ssize_t> send(const msghdr& message, int flags) override { return way_.transfer().send(message, flags); }
  Result<ssize_t> receive_bytes(void* data, std::size_t length, int flags) override {
    return way_.transfer().receive_bytes(data, length, flags);
  }
  Result<ssize_t> send_bytes(const void* data, std::size_t length, int flags) override {
    return way_.transfer().send_bytes(data, length, flags);
  }
  Result<ssize_t> receive_by(runtime::BytesTaker& taker, std::span<std::byte> room, int flags) override {
    return way_.transfer().receive_by(taker, room, flags);
  }

  std::uint32_t ready() noexcept override { return way_.readiness().ready(); }
  runtime::WaitFds arm() noexcept override { return way_.readiness().arm(); }
  void woken() noexcept override { way_.readiness().woken(); }
  Nanos deadline() noexcept override { return way_.readiness().deadline(); }
  [[nodiscard]] bool asks_kernel() const noexcept override { return way_.readiness().asks_kernel(); }
  [[nodiscard]] bool rings_for_each_arrival() const noexcept override {
    return way_.readiness().rings_for_each_arrival();
  }

  Status bind(const sockaddr* address, socklen_t length) override { return way_.bind(address, length); }
  Status listen(int backlog) override { return way_.listen(backlog); }
  Result<int> accept(SocketAddress& peer, int flags) override { return way_.accept(peer, flags); }
  Status connect(const sockaddr* address, socklen_t length) override { return way_.connect(address, length); }
  Status shutdown(int how) override { return way_.shutdown(how); }
  Result<SocketAddress> local_name() override { return way_.local_name(); }
  Result<SocketAddress> peer_name() override { return way_.peer_name(); }
  Status set_option(int level, int name, const void* value, socklen_t length) override {
    return way_.set_option(level, name, value, length);
  }
  Status get_option(int level, int name, void* value, socklen_t* length) override {
    return way_.get_option(level, name, value, length);
  }

  void closed() noexcept override { way_.numbers().closed(); }
  [[nodiscard]] bool is_kernels_too() const noexcept override { return way_.numbers().is_kernels_too(); }

  runtime::SocketStatistics* statistics() noexcept override { return way_.statistics(); }
  void add_fork_locks(runtime::ForkLocks& locks) override {
    way_.inheritance().add_fork_locks(locks);
    runtime::Endpoint::add_fork_locks(locks);
  }
  void after_fork(runtime::ProcessLife::ForkSide side) noexcept override {
    runtime::Endpoint::after_fork(side);
    way_.inheritance().after_fork(side);
  }
  void before_exec() noexcept override { way_.inheritance().before_exec(); }
  void passed_on() noexcept override { way_.inheritance().passed_on(); }

 private:
  friend class PassedOn<EndpointOf<TheWay>>;
  /// As runtime::Roles, of the types of the way's parts.
  template <class Transfer, class Readiness, class Descriptors, class ProcessLife>
  struct Parts {
    Transfer& transfer;
    Readiness& readiness;
    Descriptors& descriptors;
    ProcessLife& process_life;
  };
  template <class... Roles>
  static Parts<Roles...> parts(Roles&... roles) {
    return {roles...};
  }
  [[nodiscard]] auto roles() const {
    auto& way = const_cast<TheWay&>(way_);  // as runtime::Roles: an endpoint that is const does not make its parts so
    return parts(way.transfer(), way.readiness(), way.numbers(), way.inheritance());
  }

  TheWay way_;
};

}  // namespace ringsock::transports
