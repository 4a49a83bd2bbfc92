#include "libvmacompat/ethernet.h"

#include <pthread.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "core/base/log.h"
#include "core/net/networks.h"
#include "libvmacompat/process.h"

namespace ringsock::vma {

namespace {

/// Of the namespaces in use; the newest is kept although nobody may use it: opening rings takes milliseconds.
struct All {
  std::map<net::NetworkState*, std::weak_ptr<Ethernet>> by_network;
  std::shared_ptr<Ethernet> newest;
};

constinit Mutex all_lock;
constinit All* all = nullptr;  ///< made with the first; a forked child makes its own
constinit std::vector<std::shared_ptr<Ethernet>>* held = nullptr;  ///< across a fork

}  // namespace

/// fork(2): rings, flows and what fills them stay the parent's.
struct EthernetForkHandlers {
  static void install() {
    static const int installed = ::pthread_atfork(&before, &in_parent, &in_child);
    static_cast<void>(installed);
  }
  static void before() {
    all_lock.lock();
    held = new std::vector<std::shared_ptr<Ethernet>>;
    for (const auto& [network, weak] : all->by_network) {
      if (auto ethernet = weak.lock()) held->push_back(std::move(ethernet));
    }
    for (const auto& ethernet : *held) ethernet->lock_.lock();
  }
  static void in_parent() {
    for (const auto& ethernet : *held) ethernet->lock_.unlock();
    all_lock.unlock();
    delete std::exchange(held, nullptr);  // may end some of them: without the lock
  }
  static void in_child() {
    for (const auto& ethernet : *held) {
      for (auto& [ifindex, slot] : ethernet->slots_) {
        if (slot.ring) slot.ring->interface().forget_after_fork();
      }
    }
    held = nullptr;  // never destroyed, like `all`
    all = new All;
    all_lock.unlock();
  }
};

Result<std::shared_ptr<Ethernet>> Ethernet::of_socket(int fd) {
  auto network = net::networks().of_socket(fd);
  if (!network) return network.error();
  std::shared_ptr<Ethernet> before;  // ends without the lock
  const std::lock_guard guard(all_lock);
  if (all == nullptr) {
    all = new All;
    EthernetForkHandlers::install();
  }
  std::weak_ptr<Ethernet>& known = all->by_network[network->get()];
  if (auto ethernet = known.lock()) return ethernet;
  auto ethernet = std::make_shared<Ethernet>(*std::move(network));
  if (Status watched = ethernet->watch(); !watched) return watched.error();
  known = ethernet;
  before = std::exchange(all->newest, ethernet);
  return ethernet;
}

Status Ethernet::watch() {
  listener_ = network_->add_listener([this](const net::NetworkChange& change) { on_change(change); });
  auto watch = runtime::service_thread().watch(network_->fd(), EPOLLIN,
                                               [network = network_](std::uint32_t) { network->process_events(); });
  // Somebody else may be watching the same namespace for a moment: the one that is about to end.
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
  if (change.what != What::link && change.what != What::address && change.what != What::everything) return;
  std::vector<std::shared_ptr<Ring>> gone;  // end without the lock
  {
    const std::lock_guard guard(lock_);
    for (auto slot = slots_.begin(); slot != slots_.end();) {
      const bool is_meant = change.what == What::everything || slot->first == change.ifindex;
      const bool is_there = !is_meant || network_->link(slot->first).has_value();
      if (slot->second.ring && is_there) {
        ++slot;
        continue;
      }
      gone.push_back(std::move(slot->second.ring));
      slot = is_meant ? slots_.erase(slot) : std::next(slot);  // one that failed may be tried again
    }
  }
  address_generation_.fetch_add(1, std::memory_order_relaxed);
}

Result<std::shared_ptr<Ring>> Ethernet::ring_on(int ifindex) {
  const std::lock_guard guard(lock_);
  Slot& slot = slots_[ifindex];
  if (slot.ring) return slot.ring;
  if (slot.error.code != 0) return slot.error;
  auto ring = open(ifindex);
  if (ring) {
    slot.ring = *ring;
  } else {
    slot.error = ring.error();
    log_info("interface %d: left to the kernel: %s: %s", ifindex, slot.error.where, std::strerror(slot.error.code));
  }
  return ring;
}

Result<std::shared_ptr<Ring>> Ethernet::open(int ifindex) {
  const auto link = network_->link(ifindex);
  if (!link || !link->is_ethernet() || link->is_loopback()) return Error{EOPNOTSUPP, "not an Ethernet interface"};
  auto interface = Interface::open(ifindex, link->mtu);
  if (!interface) return interface.error();
  const RingSettings most;
  const config::VmaConfig& config = process().config;
  return Ring::create(*std::move(interface), {.receive_entries = std::min(config.rx_wre, most.receive_entries),
                                              .send_entries = std::min(config.tx_wre, most.send_entries)});
}

}  // namespace ringsock::vma
