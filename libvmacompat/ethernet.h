// The rings of one network namespace, and what is known of that namespace.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/net/network_state.h"
#include "core/runtime/service_thread.h"
#include "libvmacompat/interface.h"
#include "libvmacompat/ring.h"
#include "libvmacompat/ring_choice.h"

namespace ringsock::vma {

/// Threads: any. The service thread keeps it up to date.
class Ethernet {
 public:
  /// That of the namespace that a socket is in. Errors: those of net::Networks::of_socket(); EAGAIN, EMFILE no service
  /// thread.
  static Result<std::shared_ptr<Ethernet>> of_socket(int fd);
  explicit Ethernet(std::shared_ptr<net::NetworkState> network) : network_(std::move(network)) {}
  Ethernet(const Ethernet&) = delete;
  Ethernet& operator=(const Ethernet&) = delete;
  ~Ethernet();

  [[nodiscard]] net::NetworkState& network() const { return *network_; }
  /// The ring for sockets with that key on that interface, made when first asked for; the one that has the fewest users
  /// when the interface has as many as it may (VMA_RING_LIMIT_PER_INTERFACE), or cannot have more. Rings whose keys do
  /// not last end with their last user. Errors, told once in the log and remembered until the interface changes: those
  /// of Interface::open() and Ring::create().
  Result<std::shared_ptr<Ring>> ring_on(int ifindex, const RingKey& key);
  /// Whether rules of netfilter may concern packets of that family on that interface, so that they go by the kernel,
  /// unless VMA_IGNORE_NETFILTER says otherwise. Told once in the log.
  [[nodiscard]] bool is_left_to_netfilter(int family, int ifindex);
  /// Brings up to date what is not counted all the time, in all namespaces.
  static void refresh_statistics();
  /// Grows when addresses or interfaces came or went.
  [[nodiscard]] std::uint64_t address_generation() const { return address_generation_.load(std::memory_order_relaxed); }

 private:
  /// One interface.
  struct Slot {
    std::shared_ptr<Interface> interface;
    std::map<RingKey, std::weak_ptr<Ring>> rings;
    std::vector<std::shared_ptr<Ring>> lasting;
    Error error{0, ""};  ///< when it could not be opened

    /// Those that there are, by the number of their users.
    [[nodiscard]] std::vector<std::shared_ptr<Ring>> present();
  };
  friend struct EthernetForkHandlers;
  Status watch();
  void on_change(const net::NetworkChange& change);
  Status open(int ifindex, Slot& slot);
  static Result<std::shared_ptr<Ring>> make_ring(Slot& slot, const RingKey& key);

  const std::shared_ptr<net::NetworkState> network_;
  net::NetworkState::ListenerId listener_ = 0;
  runtime::ServiceThread::Id watch_ = 0;
  std::atomic<std::uint64_t> address_generation_{1};
  std::atomic<bool> has_told_of_netfilter_{false};
  Mutex lock_;
  std::map<int, Slot> slots_;  ///< by interface index
};

}  // namespace ringsock::vma
