// Bypasses the kernel's network stack: a program in an interface's driver, and AF_XDP sockets.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/device/packet/ring/packet_options.h"
#include "core/device/packet/ring/ring_alarm.h"
#include "core/device/packet/steering/flow_table.h"
#include "core/device/packet/xdp/xdp_socket.h"

namespace ringsock::soft {

/// There is one per interface of a host. The program is attached while this object lives, by a BPF link, which ends
/// with the process. It serves one ring at a time. Threads: any.
class XdpPath {
 public:
  /// `flows`: the rules, which must outlive this object. Errors: EBUSY another process has a program there; EPERM,
  /// ENODEV, ENOMEM, EMFILE; EOPNOTSUPP.
  static Result<std::unique_ptr<XdpPath>> create(unsigned ifindex, const FlowTable& flows, XdpMode mode);

  /// Opens one socket per receive queue. Until release() they get the packets that the rules direct to ring `number`.
  /// Errors: EBUSY another ring is served; those of XdpSocket::open().
  Result<std::vector<XdpSocket>> claim(unsigned number, unsigned frames);
  /// The alarm of the ring that is served.
  [[nodiscard]] RingAlarm& alarm() { return alarm_; }
  void release();

  /// Returns whether senders may be on this host and leave checksums to a device that does not exist. XDP does not
  /// tell.
  [[nodiscard]] bool may_lack_checksums() const { return is_virtual_; }
  void forget();

 private:
  XdpPath(unsigned ifindex, UniqueFd control) : ifindex_(ifindex), control_(std::move(control)) {}
  Status load(const FlowTable& flows, const char* program);
  Status attach(XdpMode mode, const FlowTable& flows);
  Status open_sockets(unsigned frames, std::vector<XdpSocket>& out);
  Result<xdp_target> target_for(unsigned number) const;
  bool set_target(const xdp_target& target);

  const unsigned ifindex_;
  const UniqueFd control_;  ///< any socket, for ioctl(2) on the interface
  RingAlarm alarm_;
  UniqueFd program_, link_, sockets_, target_;
  bool is_virtual_ = false;
  std::mutex lock_;
  bool is_claimed_ = false;
};

}  // namespace ringsock::soft
