// Watches the state of one interface: rtnetlink(7), netdevice(7).
#pragma once

#include <optional>
#include <string>

#include "core/base/result.h"
#include "core/base/unique_fd.h"

namespace ringsock::soft {

enum class InterfaceState { down, up, gone };

/// An interface of the network namespace in which this object was opened; the calling thread may be in another
/// namespace by now. Threads: next() one at a time, the others any.
class InterfaceWatch {
 public:
  /// Errors: ENODEV, EOPNOTSUPP (not Ethernet), those of socket(2).
  static Result<InterfaceWatch> open(unsigned ifindex);

  /// The descriptor is readable when next() may return a change.
  [[nodiscard]] int descriptor() const { return socket_.get(); }
  /// Returns the next change, in the order in which they happened, or nothing.
  std::optional<InterfaceState> next();
  /// Returns the present state. Errors: ENODEV.
  [[nodiscard]] Result<InterfaceState> ask() const;
  [[nodiscard]] Result<std::string> name() const;
  [[nodiscard]] Result<unsigned> mtu() const;
  void forget() { socket_.reset(); }

 private:
  InterfaceWatch(unsigned ifindex, UniqueFd socket) : ifindex_(ifindex), socket_(std::move(socket)) {}

  unsigned ifindex_;
  UniqueFd socket_;
  InterfaceState state_ = InterfaceState::down;
};

}  // namespace ringsock::soft
