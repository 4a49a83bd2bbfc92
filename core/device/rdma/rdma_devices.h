// Which real devices this process can use, and which addresses are theirs.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/base/socket_address.h"
#include "core/device/rdma/calls.h"
#include "core/device/rdma/packet_port.h"
#include "core/device/rdma/rdma_device.h"

namespace ringsock::rdma {

/// What whoever uses the real devices wants of them.
struct RdmaUse {
  Watcher watch;          ///< looks after the devices' own events; without it a failure is noticed late
  bool required = false;  ///< nothing else may be used: their absence is worth a warning
  bool iwarp = true;      ///< iWARP devices, too, whose ports are the kernel's TCP ports
};

/// All real devices of the process. RDMA CM chooses among them by the route, per connection: an id learns its device
/// late.
/// Threads: all functions from any thread.
class RdmaDevices : public std::enable_shared_from_this<RdmaDevices> {
 public:
  explicit RdmaDevices(const Calls& calls, RdmaUse use = {}) : calls_(calls), use_(std::move(use)) {}
  RdmaDevices(const RdmaDevices&) = delete;
  RdmaDevices& operator=(const RdmaDevices&) = delete;

  [[nodiscard]] const Calls& calls() const { return calls_; }
  /// Whether there is a device and a connection manager that we may use. A look every second at most; without RDMA
  /// that is one open(2). Says once, in a line, why not: a warning where they are required or only a permission is
  /// missing.
  bool present();
  /// Whether `address`, one of this host's, is a device's: it has, or had less than a second ago.
  bool owns(const SocketAddress& address);
  /// The device of a context that librdmacm opened, by our own context. Lives as long as this. When it was removed and
  /// is there again, or was opened before a fork, it is another one.
  Result<RdmaDevice*> device_of(const ibv_context& context);
  /// The first device that can be opened, as an object of its own.
  /// Errors: ENODEV; that of the last one that could not be opened.
  Result<std::unique_ptr<RdmaDevice>> open_first();
  /// The port that is interface `ifindex` of this network namespace, by an object of its own, when it can send and
  /// receive packets (try_packets()).
  /// Errors: ENODEV none is; EPERM, told in a line; EOPNOTSUPP; those of opening it.
  Result<PacketPort> open_packet_port(unsigned ifindex);

 private:
  struct Owned {
    bool by_us;
    Nanos until;
  };
  bool look_for_devices();
  [[nodiscard]] bool may_use(const ibv_device& device) const {
    return use_.iwarp || device.transport_type != IBV_TRANSPORT_IWARP;
  }
  bool may_open(const std::string& path, const std::string& without);
  void explain(const std::string& subject, int error, const std::string& text);
  bool ask_who_owns(const SocketAddress& address);
  /// Under lock_.
  Result<std::shared_ptr<OpenContext>> open(ibv_device& device);

  const Calls& calls_;
  const RdmaUse use_;
  std::mutex lock_;
  bool present_ = false;
  std::set<std::string> told_;  ///< of these it was said why they are not used
  Nanos look_again_{};
  std::map<std::string, Owned> owners_;  ///< by the bytes of the address, port 0
  std::map<std::string, std::weak_ptr<OpenContext>> contexts_;
  std::map<std::string, std::unique_ptr<RdmaDevice>> devices_;
  std::vector<std::unique_ptr<RdmaDevice>> retired_;  ///< not usable any more; connections refer to them
};

}  // namespace ringsock::rdma
