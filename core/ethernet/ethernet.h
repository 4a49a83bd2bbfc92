// The rings of one network namespace, and what is known of that namespace.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/engine/ip/identification.h"
#include "core/ethernet/ethernet_user.h"
#include "core/ethernet/interface.h"
#include "core/ethernet/ring.h"
#include "core/ethernet/ring_choice.h"
#include "core/net/network_state.h"
#include "core/runtime/service_thread.h"

namespace ringsock::ethernet {

/// Threads: any. The service thread keeps it up to date.
class Ethernet : public std::enable_shared_from_this<Ethernet> {
 public:
  /// That of the namespace that a socket is in. Errors: those of net::Networks::of_socket(); EAGAIN, EMFILE no service
  /// thread.
  /// @param user  of the process: the same in each call
  static Result<std::shared_ptr<Ethernet>> of_socket(int fd, EthernetUser& user);
  Ethernet(std::shared_ptr<net::NetworkState> network, EthernetUser& user);
  Ethernet(const Ethernet&) = delete;
  Ethernet& operator=(const Ethernet&) = delete;
  ~Ethernet();

  [[nodiscard]] net::NetworkState& network() const { return *network_; }
  /// The ring for sockets with that key on that interface, made when first asked for; the one that has the fewest users
  /// when the interface has as many as it may, or cannot have more. Rings whose keys do
  /// not last end with their last user. Errors, told once in the log and remembered until the interface changes: those
  /// of Interface::open() and Ring::create().
  Result<std::shared_ptr<Ring>> ring_on(int ifindex, const RingKey& key);
  /// Whether rules of netfilter may concern packets of that family on that interface, so that they go by the kernel,
  /// unless the options say otherwise. Told once in the log.
  [[nodiscard]] bool is_left_to_netfilter(int family, int ifindex);
  /// Of IPv4 packets that rings send and routers may cut. A forked child has other ones: it makes its Ethernet anew.
  [[nodiscard]] engine::IdentificationNumbers& identification_numbers() { return numbers_; }
  /// Brings up to date what is not counted all the time, in all namespaces. @return the pools of received packets
  static std::vector<verbs::BufferPoolStatistics> refresh_statistics();
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
  Result<std::shared_ptr<Ring>> make_ring(Slot& slot, const RingKey& key);

  const std::shared_ptr<net::NetworkState> network_;
  EthernetUser& user_;
  engine::IdentificationNumbers numbers_;
  net::NetworkState::ListenerId listener_ = 0;
  runtime::ServiceThread::Id watch_ = 0;
  std::atomic<std::uint64_t> address_generation_{1};
  std::atomic<bool> follow_is_due_{false};  ///< sockets hear of addresses soon
  std::atomic<bool> has_told_of_netfilter_{false};
  Mutex lock_;
  std::map<int, Slot> slots_;  ///< by interface index
};

}  // namespace ringsock::ethernet
