#include "core/device/shm/cm/listener_search.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace ringsock::soft {

void ListenerSearch::have_other_way(Nanos patience) {
  times_.total = std::min(times_.total, patience);
  unproven_ = Unproven::refuse;
}

void ListenerSearch::aim(const SocketAddress& destination, PortReservation& port) {
  if (connector_) return;
  destination_ = destination;
  connector_.emplace(space_, destination, port.take_named_socket(), times_, monotonic_now(), unproven_);
}

const Connector::Connected* ListenerSearch::join_early() {
  if (!early_) {
    auto connected = connector_->attempt(monotonic_now());
    if (!connected) return nullptr;
    early_ = *std::move(connected);
  }
  return &*early_;
}

Result<ListenerSearch::Found> ListenerSearch::take() {
  if (early_) {
    Found found{*std::move(early_), true};
    early_.reset();
    return found;
  }
  auto connected = connector_->attempt(monotonic_now());
  if (!connected) return connected.error();
  return Found{*std::move(connected), false};
}

/// Remembers a listener that did not answer, so that clients with another way do not wait for it.
void ListenerSearch::end(int error) {
  const bool is_silent = error == ETIMEDOUT || (error != 0 && connector_ && connector_->met_full_impostor());
  if (is_silent && unproven_ == Unproven::refuse && times_.total > Nanos::zero())
    silent_ports_.remember({space_, destination_, false}, monotonic_now());
  connector_.reset();
}

}  // namespace ringsock::soft
