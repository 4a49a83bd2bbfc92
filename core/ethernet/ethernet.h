// The rings of one network namespace, and the state of that namespace.
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
#include "core/net/network_state.h"
#include "core/runtime/ring_choice.h"
#include "core/runtime/service_thread.h"

namespace ringsock::ethernet {

/// The service thread keeps it up to date. Threads: any.
class Ethernet : public std::enable_shared_from_this<Ethernet> {
 public:
  /// Returns the object for the namespace of a socket. Errors: those of net::Networks::of_socket(); EAGAIN, EMFILE no
  /// service thread.
  /// @param user  the user in this process, the same in each call
  static Result<std::shared_ptr<Ethernet>> of_socket(int fd, EthernetUser& user);
  Ethernet(std::shared_ptr<net::NetworkState> network, EthernetUser& user);
  Ethernet(const Ethernet&) = delete;
  Ethernet& operator=(const Ethernet&) = delete;
  ~Ethernet();

  [[nodiscard]] net::NetworkState& network() const { return *network_; }
  /// Returns the ring on an interface for sockets with that key; makes it at the first call. When the interface may not
  /// or cannot have more rings, returns the one with the fewest users. A ring whose key is not lasting ends with its
  /// last user. Errors are logged once, and remembered until the interface changes: those of Interface::open() and
  /// Ring::create().
  Result<std::shared_ptr<Ring>> ring_on(int ifindex, const runtime::RingKey& key);
  /// Returns whether netfilter rules may concern packets of that family on that interface, so that the kernel has to
  /// carry them; always false when the options ignore netfilter. Logged once.
  [[nodiscard]] bool is_left_to_netfilter(int family, int ifindex);
  /// Returns the most bytes of an IP packet that rings send on a path with that MTU.
  [[nodiscard]] std::uint32_t longest_packet(std::uint32_t path_mtu) const;
  /// Identifications of IPv4 packets that rings send without DF. A forked child makes a new Ethernet and so has other
  /// numbers.
  [[nodiscard]] engine::IdentificationNumbers& identification_numbers() { return numbers_; }
  /// Updates the counters that are not kept all the time, in all namespaces. Returns the statistics of the pools of
  /// received packets.
  static std::vector<verbs::BufferPoolStatistics> refresh_statistics();
  /// Grows when addresses or interfaces have changed.
  [[nodiscard]] std::uint64_t address_generation() const { return address_generation_.load(std::memory_order_relaxed); }

 private:
  /// One interface.
  struct Slot {
    std::shared_ptr<Interface> interface;
    std::map<runtime::RingKey, std::weak_ptr<Ring>> rings;
    std::vector<std::shared_ptr<Ring>> lasting;
    Error error{0, ""};  ///< set when it could not be opened

    /// Returns the existing rings, sorted by the number of their users.
    [[nodiscard]] std::vector<std::shared_ptr<Ring>> present();
  };
  friend struct EthernetForkHandlers;
  Status watch();
  void on_change(const net::NetworkChange& change);
  Status open(int ifindex, Slot& slot);
  Result<std::shared_ptr<Ring>> make_ring(Slot& slot, const runtime::RingKey& key);

  const std::shared_ptr<net::NetworkState> network_;
  EthernetUser& user_;
  engine::IdentificationNumbers numbers_;
  net::NetworkState::ListenerId listener_ = 0;
  runtime::ServiceThread::Id watch_ = 0;
  std::atomic<std::uint64_t> address_generation_{1};
  std::atomic<bool> follow_is_due_{false};  ///< sockets will be told of changed addresses
  std::atomic<bool> has_told_of_netfilter_{false};
  Mutex lock_;
  std::map<int, Slot> slots_;  ///< by interface index
};

}  // namespace ringsock::ethernet
