// The neighbours that senders have asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "core/net/neighbour.h"

namespace ringsock::net {

/// Holds the entries that were handed out, not the kernel's whole table, which may have many thousands. Entries that
/// nobody else holds any more are dropped when the table has twice as many entries as were in use at the last cleaning,
/// and more than kAlwaysKept: a server that answers thousands of neighbours in turn holds few of them at a time.
/// Threads: one at a time.
class NeighbourTable {
 public:
  static constexpr std::size_t kAlwaysKept = 4096;

  /// The effect of an event.
  struct Update {
    std::shared_ptr<Neighbour> neighbour;  ///< null: no sender has asked for it
    bool matters = false;                  ///< whether a sender's header may be wrong now
    bool refresh = false;                  ///< whether it went stale while in use, so that the kernel should confirm it
  };

  std::shared_ptr<Neighbour> find(int ifindex, const IpAddress& address) const;
  /// Adds an entry in the state `none`.
  std::shared_ptr<Neighbour> add(int ifindex, const IpAddress& address);
  Update update(int ifindex, const IpAddress& address, const NeighbourFacts& facts);

  /// Grows with each update. Facts that were requested before an update and arrive after it may be older than the
  /// update.
  [[nodiscard]] std::uint64_t updates() const { return updates_; }
  [[nodiscard]] std::vector<std::shared_ptr<Neighbour>> all() const;
  [[nodiscard]] std::size_t size() const { return entries_.size(); }

 private:
  struct Key {
    int ifindex;
    IpAddress address;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const {
      return key.address.hash() ^ (static_cast<std::size_t>(key.ifindex) * 0x9e3779b1U);
    }
  };

  void drop_unused();

  std::unordered_map<Key, std::shared_ptr<Neighbour>, Hash> entries_;
  std::size_t drop_above_ = kAlwaysKept;
  std::uint64_t updates_ = 0;
};

}  // namespace ringsock::net
