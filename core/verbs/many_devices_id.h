// One endpoint of the connection manager on several devices.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "core/base/unique_fd.h"
#include "core/verbs/connection_manager.h"
#include "core/verbs/registry.h"

namespace ringsock::verbs {

/// A bound address belongs to every device that reaches it: a listener accepts clients from all of them, and a
/// connection uses the best device for its destination. Until the device is chosen, a device that refuses an operation
/// is left out, except that a port that is taken on any device counts as taken.
class ManyDevicesId final : public ConnectionId {
 public:
  /// @param devices best first; the last one binds first, so that it may choose the port, and its result counts for all
  /// Errors: those of Device::create_id(), when none of them can make one.
  static Result<std::unique_ptr<ConnectionId>> create(DeviceRegistry& registry, std::vector<Device*> devices,
                                                      PortSpace space);

  Device& device() override { return front().device(); }
  void share_port_with(int kernel_socket) override { kernel_socket_ = kernel_socket; }
  Status bind(const SocketAddress& address) override;
  void set_reuse_address(bool on) override { reuse_address_ = on; }
  void set_v6_only(bool on) override { v6_only_ = on; }
  void set_type_of_service(std::uint8_t tos) override { type_of_service_ = tos; }
  Status listen(int backlog) override;
  void check_requests_by(bool (*check)(std::span<const std::byte>)) override {
    for (const Member& member : members_) member.id->check_requests_by(check);
  }
  Status resolve_addr(const SocketAddress& destination, Nanos timeout) override;
  Status resolve_route(Nanos timeout) override { return front().resolve_route(timeout); }
  void use_route(std::span<const std::byte> path_data) override;
  [[nodiscard]] std::vector<std::byte> route() const override { return front().route(); }
  [[nodiscard]] std::optional<uid_t> other_user() const override { return front().other_user(); }
  Result<ConnectionQp> create_qp(ibv_pd& pd, ibv_qp_init_attr& attr, ReceiveBytes receive) override {
    return front().create_qp(pd, attr, receive);
  }
  Status connect(const ConnectionParameters& parameters) override { return front().connect(parameters); }
  Status accept(const ConnectionParameters& parameters) override { return front().accept(parameters); }
  Status reject(std::span<const std::byte> private_data) override { return front().reject(private_data); }
  Status disconnect() override { return front().disconnect(); }

  /// Asks the devices in turn, so that none keeps the clients of the others waiting.
  Result<CmEvent> next_event() override;
  [[nodiscard]] int event_fd() const override { return readiness_ ? readiness_.get() : front().event_fd(); }
  [[nodiscard]] std::optional<Nanos> next_deadline() const override;
  Status move_to_descriptor(int fd) override { return front().move_to_descriptor(fd); }
  Status adopt_descriptor(int fd) override { return front().adopt_descriptor(fd); }
  void abandon(bool give_away) override;
  void take_over() override { front().take_over(); }
  void withdraw_memory() override { front().withdraw_memory(); }
  [[nodiscard]] bool has_waiting(bool (*is_wanted)(std::uint32_t)) const override {
    return front().has_waiting(is_wanted);
  }
  std::vector<ConnectionId*> unshareable_parts() override;
  bool drop_unshareable_parts() override;
  void end_for_all() override;
  [[nodiscard]] SocketAddress local_address() const override { return front().local_address(); }
  [[nodiscard]] SocketAddress peer_address() const override { return front().peer_address(); }

 private:
  struct Member {
    Device* device;
    std::unique_ptr<ConnectionId> id;
  };
  ManyDevicesId(DeviceRegistry& registry, std::vector<Device*> devices, PortSpace space)
      : registry_(registry), devices_(std::move(devices)), space_(space) {}
  [[nodiscard]] ConnectionId& front() const { return *members_.front().id; }
  Status make_ids();
  void apply_options() const;
  Status bind_once(const SocketAddress& address);
  Status watch_all();

  DeviceRegistry& registry_;
  const std::vector<Device*> devices_;
  const PortSpace space_;
  int kernel_socket_ = -1;
  bool reuse_address_ = false;
  bool v6_only_ = false;
  std::uint8_t type_of_service_ = 0;
  std::vector<Member> members_;  ///< starts with the last device; has one member once connecting; never empty
  bool fresh_ = true;            ///< no operation has been done on the members
  std::size_t turn_ = 0;
  UniqueFd readiness_;  ///< epoll descriptor of a listener on several devices
};

/// Makes the id with which a socket binds: of the only device that reaches `address`, or one over all that do.
/// Errors: those of DeviceRegistry::choose() and Device::create_id().
Result<std::unique_ptr<ConnectionId>> make_id_for_binding(DeviceRegistry& registry, const SocketAddress& address,
                                                          PortSpace space);

}  // namespace ringsock::verbs
