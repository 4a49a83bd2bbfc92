// Clients of a listener.
#pragma once

#include <atomic>
#include <cstddef>
#include <list>
#include <utility>

#include "core/runtime/endpoint.h"

namespace ringsock::rs {

/// Connections in the order in which they came. Under the listener's lock, but for empty(), which any thread may ask.
/// Empty it has no memory of its own: every stream socket has two.
class ClientQueue {
 public:
  [[nodiscard]] bool empty() const { return count_.load(std::memory_order_relaxed) == 0; }
  [[nodiscard]] std::size_t size() const { return clients_.size(); }
  [[nodiscard]] runtime::Ref& front() { return clients_.front(); }
  auto begin() { return clients_.begin(); }
  auto end() { return clients_.end(); }

  void push_back(runtime::Ref client) {
    clients_.push_back(std::move(client));
    count();
  }
  void push_front(runtime::Ref client) {
    clients_.push_front(std::move(client));
    count();
  }
  runtime::Ref take_front() {
    runtime::Ref first = std::move(clients_.front());
    clients_.pop_front();
    count();
    return first;
  }
  void replace(std::list<runtime::Ref> clients) {
    clients_ = std::move(clients);
    count();
  }
  void clear() { replace({}); }

 private:
  void count() { count_.store(clients_.size(), std::memory_order_relaxed); }
  std::list<runtime::Ref> clients_;
  std::atomic<std::size_t> count_{0};
};

}  // namespace ringsock::rs
