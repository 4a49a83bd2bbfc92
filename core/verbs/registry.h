// Finds the device that serves an address.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/base/socket_address.h"
#include "core/verbs/device.h"

namespace ringsock::verbs {

enum class DeviceKind {
  rdma,  ///< hardware, through libibverbs
  soft,  ///< the embedded device
};

/// One device that could be opened.
/// Threads: reaches() from any thread at any time; open() is called once, by the registry.
class DeviceProvider {
 public:
  virtual ~DeviceProvider() = default;

  [[nodiscard]] virtual const char* name() const = 0;
  [[nodiscard]] virtual DeviceKind kind() const = 0;
  /// Returns whether a connection to or from `address` can go through this device: the address belongs to the device,
  /// or the device has a route to it. A wildcard is reached when the device can listen on any address.
  [[nodiscard]] virtual bool reaches(const SocketAddress& address) = 0;
  /// Errors: those of the device, e.g. ENODEV, EPERM.
  virtual Result<std::unique_ptr<Device>> open() = 0;
  /// Returns whether a connection by this device, in any process of the host, has the port, which the kernel does not
  /// know. Needs no open device.
  [[nodiscard]] virtual bool has_port_unseen(PortSpace /*space*/, const SocketAddress& /*address*/) { return false; }
};

/// The kinds of device that the user permits.
struct AllowedDevices {
  bool rdma = true;
  bool soft = true;
};

/// The devices of a process. Each is opened when an address first asks for it, and stays open as long as the registry.
/// A device that cannot be opened is logged once and skipped from then on.
/// Threads: all functions from any thread.
class DeviceRegistry {
 public:
  /// `providers` are in order of preference within a kind. Hardware always comes before the embedded device.
  explicit DeviceRegistry(std::vector<std::unique_ptr<DeviceProvider>> providers, AllowedDevices allowed = {});

  /// Returns the best device for `address`. Error: ENODEV when none reaches it; the error of open() when the only one
  /// that reaches it could not be opened.
  Result<Device*> choose(const SocketAddress& address);
  /// Returns the device for a connection to `destination`: that of choose(), unless it is hardware and a socket listens
  /// on the embedded device. Then both ends are on this host, where shared memory is faster than any card.
  Result<Device*> choose_towards(PortSpace space, const SocketAddress& destination);
  /// Returns every device that reaches `address`, best first, for a listener that accepts connections from all of them.
  std::vector<Device*> all(const SocketAddress& address);
  /// Returns whether one of the devices has the port unseen (DeviceProvider). Opens nothing.
  [[nodiscard]] bool has_port_unseen(PortSpace space, const SocketAddress& address) const;
  /// Returns whether there is no device to use: none is permitted, or all have failed to open. Opens nothing.
  [[nodiscard]] bool empty();
  /// Handlers for fork(2), as for pthread_atfork(3), so that no device is half open in the child. Call before_fork()
  /// before the handlers of what opening a device needs.
  void before_fork();
  void after_fork();

 private:
  enum class State { closed, open, failed };
  struct Entry {
    std::unique_ptr<DeviceProvider> provider;
    Mutex lock;  ///< held while the device opens
    std::atomic<State> state{State::closed};
    std::unique_ptr<Device> device;
    Error error{ENODEV, "device"};
  };

  /// Returns the entry's device, opens it first if necessary.
  static Result<Device*> device_of(Entry& entry);

  std::vector<std::unique_ptr<Entry>> entries_;  ///< never changes after construction
};

}  // namespace ringsock::verbs
