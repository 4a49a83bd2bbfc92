// Which device serves an address.
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
  /// Whether a connection to or from `address` can go through this device: it is an address of the device, or one that
  /// it has a route to. A wildcard is reached when the device can listen on any address.
  [[nodiscard]] virtual bool reaches(const SocketAddress& address) = 0;
  /// Errors: those of the device, e.g. ENODEV, EPERM.
  virtual Result<std::unique_ptr<Device>> open() = 0;
};

/// Which kinds of device the user permits.
struct AllowedDevices {
  bool rdma = true;
  bool soft = true;
};

/// The devices of a process. Each is opened when an address first asks for it, and stays open as long as the registry.
/// A device that cannot be opened is passed over from then on; that is logged once.
/// Threads: all functions from any thread.
class DeviceRegistry {
 public:
  /// `providers` in order of preference within a kind; hardware goes before the embedded device in any case.
  explicit DeviceRegistry(std::vector<std::unique_ptr<DeviceProvider>> providers, AllowedDevices allowed = {});

  /// The best device for `address`. Error: ENODEV when none reaches it; the error of open() when the only one that
  /// reaches it could not be opened.
  Result<Device*> choose(const SocketAddress& address);
  /// The device to connect to `destination` with: choose(), unless that is hardware and somebody listens on the
  /// embedded device. Then both ends are on this host, where memory is nearer than any card.
  Result<Device*> choose_towards(PortSpace space, const SocketAddress& destination);
  /// Every device that reaches `address`, best first: for a listener, which takes connections from all of them.
  std::vector<Device*> all(const SocketAddress& address);
  /// Whether any device is permitted and has not failed to open. Opens nothing.
  [[nodiscard]] bool empty();
  /// Around fork(2), as pthread_atfork(3) calls them: no device is half open in the child. Before what opening needs.
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

  /// The entry's device, opened now if need be.
  static Result<Device*> device_of(Entry& entry);

  std::vector<std::unique_ptr<Entry>> entries_;  ///< never changes after construction
};

}  // namespace ringsock::verbs
