#include "core/verbs/registry.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "core/base/log.h"

namespace ringsock::verbs {

namespace {

bool is_allowed(DeviceKind kind, AllowedDevices allowed) {
  return kind == DeviceKind::rdma ? allowed.rdma : allowed.soft;
}

}  // namespace

DeviceRegistry::DeviceRegistry(std::vector<std::unique_ptr<DeviceProvider>> providers, AllowedDevices allowed) {
  for (auto& provider : providers) {
    if (!is_allowed(provider->kind(), allowed)) continue;
    auto entry = std::make_unique<Entry>();
    entry->provider = std::move(provider);
    entries_.push_back(std::move(entry));
  }
  std::stable_sort(entries_.begin(), entries_.end(),
                   [](const auto& a, const auto& b) { return a->provider->kind() < b->provider->kind(); });
}

Result<Device*> DeviceRegistry::device_of(Entry& entry) {
  if (entry.state.load(std::memory_order_acquire) == State::open) [[likely]]
    return entry.device.get();
  const std::lock_guard guard(entry.lock);
  if (entry.state == State::closed) {
    auto opened = entry.provider->open();
    if (opened) {
      entry.device = std::move(*opened);
      entry.state = State::open;
      log_debug("device %s is open", entry.provider->name());
    } else {
      entry.error = opened.error();
      entry.state = State::failed;
      log_info("device %s is not used: %s: %s", entry.provider->name(), entry.error.where,
               std::strerror(entry.error.code));
    }
  }
  if (entry.state == State::failed) return entry.error;
  return entry.device.get();
}

Result<Device*> DeviceRegistry::choose(const SocketAddress& address) {
  Error error{ENODEV, "no device reaches the address"};
  for (const auto& entry : entries_) {
    if (!entry->provider->reaches(address)) continue;
    auto device = device_of(*entry);
    if (device) return device;
    error = device.error();
  }
  return error;
}

Result<Device*> DeviceRegistry::choose_towards(PortSpace space, const SocketAddress& destination) {
  auto best = choose(destination);
  if (!best || (*best)->traits().is_embedded) return best;
  for (const auto& entry : entries_) {
    if (entry->provider->kind() != DeviceKind::soft || !entry->provider->reaches(destination)) continue;
    auto device = device_of(*entry);
    if (device && (*device)->may_have_listener(space, destination)) return device;
  }
  return best;
}

std::vector<Device*> DeviceRegistry::all(const SocketAddress& address) {
  std::vector<Device*> devices;
  for (const auto& entry : entries_) {
    if (!entry->provider->reaches(address)) continue;
    if (auto device = device_of(*entry)) devices.push_back(*device);
  }
  return devices;
}

bool DeviceRegistry::has_port_unseen(PortSpace space, const SocketAddress& address) const {
  return std::any_of(entries_.begin(), entries_.end(),
                     [&](const auto& entry) { return entry->provider->has_port_unseen(space, address); });
}

void DeviceRegistry::before_fork() {
  for (const auto& entry : entries_) entry->lock.lock();
}

void DeviceRegistry::after_fork() {
  for (const auto& entry : entries_) entry->lock.unlock();
}

bool DeviceRegistry::empty() {
  return std::all_of(entries_.begin(), entries_.end(), [](const auto& entry) {
    const std::lock_guard guard(entry->lock);
    return entry->state == State::failed;
  });
}

}  // namespace ringsock::verbs
