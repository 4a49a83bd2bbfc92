// Clients of a listener.
#pragma once

#include <atomic>
#include <cstddef>
#include <list>
#include <utility>

#include "core/runtime/endpoint.h"

namespace ringsock::rs {

/// Clients move from list to list, which takes no memory: a client that was answered must not be lost.
using Clients = std::list<runtime::Ref>;

/// Connections in the order in which they came. Under the listener's lock, but for empty(), which any thread may ask.
/// Empty it has no memory of its own: every stream socket has two.
class ClientQueue {
 public:
  [[nodiscard]] bool empty() const { return count_.load(std::memory_order_relaxed) == 0; }
  [[nodiscard]] std::size_t size() const { return clients_.size(); }
  [[nodiscard]] runtime::Ref& front() { return clients_.front(); }
  auto begin() { return clients_.begin(); }
  auto end() { return clients_.end(); }

  void push_back(Clients client) {
    clients_.splice(clients_.end(), client);
    count();
  }
  void push_front(Clients client) {
    clients_.splice(clients_.begin(), client);
    count();
  }
  Clients take_front() {
    Clients first;
    first.splice(first.begin(), clients_, clients_.begin());
    count();
    return first;
  }
  Clients take_all() {
    Clients all;
    all.swap(clients_);
    count();
    return all;
  }

 private:
  void count() { count_.store(clients_.size(), std::memory_order_relaxed); }
  Clients clients_;
  std::atomic<std::size_t> count_{0};
};

}  // namespace ringsock::rs
