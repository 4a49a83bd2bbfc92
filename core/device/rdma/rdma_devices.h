// Finds the real devices that this process can use, and their addresses.
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

/// The requirements of the user of the real devices.
struct RdmaUse {
  Watcher watch;          ///< serves the devices' asynchronous events; without it a failure is noticed late
  bool required = false;  ///< no other device may be used, so a missing one causes a warning
  bool iwarp = true;      ///< whether to use iWARP devices, too, whose ports are the kernel's TCP ports
};

/// All real devices of the process. RDMA CM chooses among them by the route, for each connection, so an id learns its
/// device late.
/// Threads: all functions from any thread.
class RdmaDevices : public std::enable_shared_from_this<RdmaDevices> {
 public:
  explicit RdmaDevices(const Calls& calls, RdmaUse use = {}) : calls_(calls), use_(std::move(use)) {}
  RdmaDevices(const RdmaDevices&) = delete;
  RdmaDevices& operator=(const RdmaDevices&) = delete;

  [[nodiscard]] const Calls& calls() const { return calls_; }
  /// Returns whether there is a device and a connection manager that this process may use. Looks once a second at most;
  /// without RDMA that is one open(2). Logs the reason once when there is none, as a warning where devices are required
  /// or only a permission is missing.
  bool present();
  /// Returns whether `address`, one of this host's, belongs to a device. An answer is reused for a second.
  bool owns(const SocketAddress& address);
  /// Returns the RdmaDevice for a context that librdmacm opened. It lives as long as this object. A device that was
  /// removed and added again, or was opened before a fork, is a different one.
  Result<RdmaDevice*> device_of(const ibv_context& context);
  /// Opens the first device that can be opened, as a separate object.
  /// Errors: ENODEV; that of the last device that could not be opened.
  Result<std::unique_ptr<RdmaDevice>> open_first();
  /// Opens the port that belongs to interface `ifindex` of this network namespace, as a separate object, if it can send
  /// and receive packets (try_packets()).
  /// Errors: ENODEV no device has the interface; EPERM, which is logged; EOPNOTSUPP; those of opening it.
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
  /// lock_ must be held.
  Result<std::shared_ptr<OpenContext>> open(ibv_device& device);

  const Calls& calls_;
  const RdmaUse use_;
  std::mutex lock_;
  bool present_ = false;
  std::set<std::string> told_;  ///< devices that were logged as unusable
  Nanos look_again_{};
  std::map<std::string, Owned> owners_;  ///< by the bytes of the address, port 0
  std::map<std::string, std::weak_ptr<OpenContext>> contexts_;
  std::map<std::string, std::unique_ptr<RdmaDevice>> devices_;
  std::vector<std::unique_ptr<RdmaDevice>> retired_;  ///< no longer usable, but connections refer to them
};

}  // namespace ringsock::rdma
