#include "core/verbs/many_devices_id.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <utility>

#include "core/base/log.h"

namespace ringsock::verbs {

Result<std::unique_ptr<ConnectionId>> ManyDevicesId::create(DeviceRegistry& registry, std::vector<Device*> devices,
                                                            PortSpace space) {
  std::unique_ptr<ManyDevicesId> id(new ManyDevicesId(registry, std::move(devices), space));
  if (Status made = id->make_ids(); !made) return made.error();
  return std::unique_ptr<ConnectionId>(std::move(id));
}

/// Makes an id on each device that can. Error when none can.
Status ManyDevicesId::make_ids() {
  std::vector<Member> made;
  Error error{ENODEV, "no device"};
  for (auto device = devices_.rbegin(); device != devices_.rend(); ++device) {
    auto id = (*device)->create_id(space_);
    if (!id) {
      error = id.error();
      continue;
    }
    made.push_back({*device, *std::move(id)});
  }
  if (made.empty()) return error;
  members_ = std::move(made);
  return ok();
}

void ManyDevicesId::apply_options() const {
  for (const Member& member : members_) {
    member.id->set_reuse_address(reuse_address_);
    member.id->set_v6_only(v6_only_);
    member.id->set_type_of_service(type_of_service_);
    if (kernel_socket_ >= 0) member.id->share_port_with(kernel_socket_);
  }
}

Status ManyDevicesId::bind(const SocketAddress& address) {
  constexpr int kAttempts = 16;
  Status bound = Error{EADDRINUSE, "bind"};
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    bound = bind_once(address);
    // The port that one device has chosen may be taken on another.
    if (bound || bound.error().code != EADDRINUSE || address.port() != 0) break;
  }
  return bound;
}

Status ManyDevicesId::bind_once(const SocketAddress& address) {
  // Devices that were bound stay bound, although others were not.
  if (!std::exchange(fresh_, false)) {
    if (Status made = make_ids(); !made) return made;
  }
  apply_options();
  SocketAddress wanted = address;
  Status refused = ok();
  for (std::size_t i = 0; i < members_.size();) {
    const Status bound = members_[i].id->bind(wanted);
    if (bound) {
      wanted.set_port(members_[i].id->local_address().port());
      ++i;
      continue;
    }
    if (refused) refused = bound;
    if (bound.error().code == EADDRINUSE) return bound;
    if (members_.size() == 1) return refused;
    log_info("%s is not bound on %s: %s: %s", wanted.to_string().c_str(), members_[i].device->name(),
             bound.error().where, std::strerror(bound.error().code));
    members_.erase(members_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return ok();
}

Status ManyDevicesId::listen(int backlog) {
  for (auto member = members_.begin(); member != members_.end();) {
    const Status listening = member->id->listen(backlog);
    if (listening) {
      ++member;
      continue;
    }
    // The result of the first device counts for all.
    if (member == members_.begin()) return listening;
    log_info("nobody listens on %s: %s: %s", member->device->name(), listening.error().where,
             std::strerror(listening.error().code));
    member = members_.erase(member);
  }
  return members_.size() > 1 && !readiness_ ? watch_all() : ok();
}

Status ManyDevicesId::watch_all() {
  UniqueFd readiness = out_of_the_way(UniqueFd(::epoll_create1(EPOLL_CLOEXEC)));
  if (!readiness) return Error::last("listen: epoll_create1");
  for (const Member& member : members_) {
    epoll_event entry{};
    entry.events = EPOLLIN;
    if (::epoll_ctl(readiness.get(), EPOLL_CTL_ADD, member.id->event_fd(), &entry) != 0) {
      return Error::last("listen: epoll_ctl");
    }
  }
  readiness_ = std::move(readiness);
  return ok();
}

Status ManyDevicesId::resolve_addr(const SocketAddress& destination, Nanos timeout) {
  const auto best = registry_.choose_towards(space_, destination);
  const auto chosen = std::find_if(members_.begin(), members_.end(),
                                   [&](const Member& member) { return best && member.device == *best; });
  if (chosen != members_.end()) std::iter_swap(members_.begin(), chosen);
  Status started = front().resolve_addr(destination, timeout);
  if (started) members_.resize(1);
  return started;
}

void ManyDevicesId::use_route(std::span<const std::byte> path_data) {
  for (const Member& member : members_) member.id->use_route(path_data);
}

Result<CmEvent> ManyDevicesId::next_event() {
  Error error{EAGAIN, "no event"};
  for (std::size_t i = 0; i < members_.size(); ++i) {
    turn_ = (turn_ + 1) % members_.size();
    auto next = members_[turn_].id->next_event();
    if (next) return next;
    if (next.error().code != EAGAIN) error = next.error();
  }
  return error;
}

std::optional<Nanos> ManyDevicesId::next_deadline() const {
  std::optional<Nanos> first;
  for (const Member& member : members_) {
    const auto deadline = member.id->next_deadline();
    if (deadline && (!first || *deadline < *first)) first = deadline;
  }
  return first;
}

void ManyDevicesId::abandon(bool give_away) {
  for (const Member& member : members_) member.id->abandon(give_away);
}

std::vector<ConnectionId*> ManyDevicesId::unshareable_parts() {
  std::vector<ConnectionId*> parts;
  for (const Member& member : members_) {
    if (!member.device->traits().survives_fork) parts.push_back(member.id.get());
  }
  return parts;
}

void ManyDevicesId::end_for_all() {
  for (const Member& member : members_) member.id->end_for_all();
}

bool ManyDevicesId::drop_unshareable_parts() {
  const auto survives = [](const Member& member) { return member.device->traits().survives_fork; };
  if (std::none_of(members_.begin(), members_.end(), survives)) return false;
  std::erase_if(members_, std::not_fn(survives));
  readiness_.reset();
  // Only a listener may still be on several devices; a connection has one member.
  if (members_.size() > 1) {
    if (Status watched = watch_all(); !watched) log_warn("a listener on several devices: %s", watched.error().where);
  }
  return true;
}

Result<std::unique_ptr<ConnectionId>> make_id_for_binding(DeviceRegistry& registry, const SocketAddress& address,
                                                          PortSpace space) {
  auto devices = registry.all(address);
  if (devices.size() > 1) return ManyDevicesId::create(registry, std::move(devices), space);
  auto device = devices.empty() ? registry.choose(address) : Result(devices.front());
  if (!device) return device.error();
  return (*device)->create_id(space);
}

}  // namespace ringsock::verbs
