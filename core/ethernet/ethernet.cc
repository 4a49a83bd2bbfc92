#include "core/ethernet/ethernet.h"

#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "core/base/at_fork.h"
#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/process_state.h"
#include "core/net/networks.h"

namespace ringsock::ethernet {

namespace {

/// All namespaces in use. The newest one is kept even when it has no users, because opening rings takes milliseconds.
struct All {
  std::map<net::NetworkState*, std::weak_ptr<Ethernet>> by_network;
  std::shared_ptr<Ethernet> newest;
};

std::array<std::uint64_t, 4> make_secret() {
  // These initial values are used when getrandom(2) fails early at boot: they can be predicted, but differ from those
  // of other processes.
  std::array<std::uint64_t, 4> secret{static_cast<std::uint64_t>(::getpid()),
                                      static_cast<std::uint64_t>(monotonic_now().count())};
  if (::getrandom(secret.data(), sizeof secret, GRND_NONBLOCK) < 0) log_debug("getrandom: errno %d", errno);
  return secret;
}

/// What the process has. Never destroyed.
struct Process {
  static constexpr ProcessPart kPart = ProcessPart::ethernets;
  Mutex lock;
  All* all = nullptr;  ///< made with the first Ethernet; a forked child makes its own
  std::vector<std::shared_ptr<Ethernet>>* held = nullptr;  ///< keeps all objects across a fork, null if there are none
};
Process& process() { return process_state<Process>(); }

}  // namespace

/// Handlers for fork(2): rings, flows, and the threads that fill them remain with the parent.
struct EthernetForkHandlers {
  [[gnu::constructor]] static void install() {
    process();
    at_fork(ForkStep::interfaces, &before, &in_parent, &in_child);
  }
  static void before() {
    process().lock.lock();
    if (process().all == nullptr) return;
    process().held = new std::vector<std::shared_ptr<Ethernet>>;
    for (const auto& [network, weak] : process().all->by_network) {
      if (auto ethernet = weak.lock()) process().held->push_back(std::move(ethernet));
    }
    for (const auto& ethernet : *process().held) ethernet->lock_.lock();
  }
  static void in_parent() {
    const auto* const held = std::exchange(process().held, nullptr);
    if (held != nullptr) {
      for (const auto& ethernet : *held) ethernet->lock_.unlock();
    }
    process().lock.unlock();
    delete held;  // without the lock, because it may destroy some of them
  }
  static void forget(Ethernet& ethernet) {
    for (auto& [ifindex, slot] : ethernet.slots_) {
      if (slot.interface) slot.interface->forget_after_fork();
    }
  }
  static void in_child() {
    if (process().held != nullptr) {
      for (const auto& ethernet : *process().held) forget(*ethernet);
    }
    process().held = nullptr;  // the objects are never destroyed, as `all` is not
    process().all = nullptr;
    process().lock.unlock();
  }
};

Result<std::shared_ptr<Ethernet>> Ethernet::of_socket(int fd, EthernetUser& user) {
  auto network = net::networks().of_socket(fd);
  if (!network) return network.error();
  std::shared_ptr<Ethernet> before;  // destroyed without the lock
  const std::lock_guard guard(process().lock);
  if (process().all == nullptr) process().all = new All;
  std::weak_ptr<Ethernet>& known = process().all->by_network[network->get()];
  if (auto ethernet = known.lock()) return ethernet;
  auto ethernet = std::make_shared<Ethernet>(*std::move(network), user);
  if (Status watched = ethernet->watch(); !watched) return watched.error();
  known = ethernet;
  before = std::exchange(process().all->newest, ethernet);
  user.has_begun();
  return ethernet;
}

Ethernet::Ethernet(std::shared_ptr<net::NetworkState> network, EthernetUser& user)
    : network_(std::move(network)), user_(user), numbers_(make_secret()) {}

Status Ethernet::watch() {
  listener_ = network_->add_listener([this](const net::NetworkChange& change) { on_change(change); });
  auto watch = runtime::service_thread().watch(network_->fd(), EPOLLIN,
                                               [network = network_](std::uint32_t) { network->process_events(); });
  // EEXIST: for a moment an Ethernet that is being destroyed may still watch the same namespace.
  if (!watch) return watch.error();
  watch_ = *watch;
  return ok();
}

Ethernet::~Ethernet() {
  if (watch_ != 0) runtime::service_thread().unwatch(watch_);
  network_->remove_listener(listener_);
}

void Ethernet::on_change(const net::NetworkChange& change) {
  using What = net::NetworkChange::What;
  if (change.what == What::filters || change.what == What::everything) {
    has_told_of_netfilter_.store(false, std::memory_order_relaxed);
    // Not called here: a thread that waits for listeners to end may hold the sockets' locks.
    static_cast<void>(
        runtime::service_thread().schedule(Nanos::zero(), [&user = user_] { user.filters_have_changed(); }));
  }
  if (change.what != What::link && change.what != What::address && change.what != What::everything) return;
  std::vector<Slot> gone;  // destroyed without the lock
  {
    const std::lock_guard guard(lock_);
    for (auto slot = slots_.begin(); slot != slots_.end();) {
      const bool is_meant = change.what == What::everything || slot->first == change.ifindex;
      const bool is_there = !is_meant || network_->link(slot->first).has_value();
      if (slot->second.interface && is_there) {
        ++slot;
        continue;
      }
      gone.push_back(std::move(slot->second));
      slot->second = {};
      slot = is_meant ? slots_.erase(slot) : std::next(slot);  // an interface that failed may be tried again
    }
  }
  address_generation_.fetch_add(1, std::memory_order_relaxed);
  // Scheduled once for all changes that the kernel reports together.
  if (follow_is_due_.exchange(true, std::memory_order_relaxed)) return;
  const auto scheduled = runtime::service_thread().schedule(Nanos::zero(), [weak = weak_from_this(), &user = user_] {
    if (const auto ethernet = weak.lock()) ethernet->follow_is_due_.store(false, std::memory_order_relaxed);
    user.addresses_have_changed();
  });
  if (!scheduled) follow_is_due_.store(false, std::memory_order_relaxed);
}

std::uint32_t Ethernet::longest_packet(std::uint32_t path_mtu) const {
  const std::uint32_t limit = user_.options().longest_packet;
  return limit == 0 ? path_mtu : std::min(path_mtu, limit);
}

bool Ethernet::is_left_to_netfilter(int family, int ifindex) {
  if (user_.options().ignores_netfilter) return false;
  const auto filter = network_->filter_on(family, ifindex);
  if (filter && !has_told_of_netfilter_.exchange(true, std::memory_order_relaxed)) {
    // A process that may not see the rules can seldom have rings, so the message matters less.
    const LogLevel level = *filter == net::kUnseenFilters ? LogLevel::info : LogLevel::warn;
    log_line(level, "left to the kernel: what netfilter may concern (%s)%s", filter->c_str(),
             user_.options().netfilter_advice);
  }
  return filter.has_value();
}

Result<std::shared_ptr<Ring>> Ethernet::ring_on(int ifindex, const runtime::RingKey& key) {
  const std::lock_guard guard(lock_);
  Slot& slot = slots_[ifindex];
  if (slot.error.code != 0) return slot.error;
  if (const auto known = slot.rings.find(key); known != slot.rings.end()) {
    if (auto ring = known->second.lock()) return ring;
  }
  Status opened = slot.interface ? ok() : open(ifindex, slot);
  Result<std::shared_ptr<Ring>> ring = opened ? make_ring(slot, key) : opened.error();
  if (ring) {
    std::erase_if(slot.rings, [](const auto& one) { return one.second.expired(); });
    slot.rings[key] = *ring;
  } else {
    slot.error = ring.error();
    log_info("interface %d: left to the kernel: %s: %s", ifindex, slot.error.where, std::strerror(slot.error.code));
  }
  return ring;
}

Status Ethernet::open(int ifindex, Slot& slot) {
  const auto link = network_->link(ifindex);
  if (!link || !link->is_ethernet() || link->is_loopback()) return Error{EOPNOTSUPP, "not an Ethernet interface"};
  auto interface = Interface::open(*link, user_.options().interface);
  if (!interface) return interface.error();
  slot.interface = *std::move(interface);
  return ok();
}

std::vector<std::shared_ptr<Ring>> Ethernet::Slot::present() {
  std::vector<std::shared_ptr<Ring>> out;
  for (const auto& [key, weak] : rings) {
    auto ring = weak.lock();
    // A shared ring has several keys.
    if (ring && std::find(out.begin(), out.end(), ring) == out.end()) out.push_back(std::move(ring));
  }
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.use_count() < b.use_count(); });
  return out;
}

Result<std::shared_ptr<Ring>> Ethernet::make_ring(Slot& slot, const runtime::RingKey& key) {
  const std::size_t limit = user_.options().most_rings;
  const auto present = slot.present();
  if (limit != 0 && present.size() >= limit) return present.front();
  auto ring = Ring::create(slot.interface, user_.options().ring, user_.make_counters(slot.interface->ifindex()),
                           user_.make_capture());
  if (!ring) return present.empty() ? ring : present.front();
  if (key.is_lasting()) slot.lasting.push_back(*ring);
  return ring;
}

std::vector<verbs::BufferPoolStatistics> Ethernet::refresh_statistics() {
  std::vector<std::shared_ptr<Ethernet>> namespaces;
  {
    const std::lock_guard guard(process().lock);
    if (process().all == nullptr) return {};
    for (const auto& [network, weak] : process().all->by_network) {
      if (auto one = weak.lock()) namespaces.push_back(std::move(one));
    }
  }
  std::vector<verbs::BufferPoolStatistics> pools;
  for (const auto& one : namespaces) {
    std::vector<std::shared_ptr<Ring>> rings;
    {
      const std::lock_guard guard(one->lock_);
      for (auto& [ifindex, slot] : one->slots_) {
        if (!slot.interface) continue;
        pools.push_back(slot.interface->pool().statistics());
        const auto present = slot.present();
        rings.insert(rings.end(), present.begin(), present.end());
      }
    }
    for (const auto& ring : rings) ring->refresh_statistics();
  }
  return pools;
}

}  // namespace ringsock::ethernet
