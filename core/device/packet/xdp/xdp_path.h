// The way past the kernel's network stack: a program at an interface's driver, and AF_XDP sockets.
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

/// One per interface, host-wide: the program is attached while this lives, by a BPF link, which goes with the process.
/// It serves one ring at a time. Threads: any.
class XdpPath {
 public:
  /// `flows`: the rules; outlives this.
  /// Errors: EBUSY another process has a program there; EPERM, ENODEV, ENOMEM, EMFILE; EOPNOTSUPP.
  static Result<std::unique_ptr<XdpPath>> create(unsigned ifindex, const FlowTable& flows, XdpMode mode);

  /// One socket per receive queue, which get what the rules have for ring `number`, until release().
  /// Errors: EBUSY another ring is served; those of XdpSocket::open().
  Result<std::vector<XdpSocket>> claim(unsigned number, unsigned frames);
  /// Of the ring that is served.
  [[nodiscard]] RingAlarm& alarm() { return alarm_; }
  void release();

  /// Whether senders may be on this host, who leave checksums to a device that never comes. XDP does not tell.
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
  const UniqueFd control_;  ///< any socket, to ask for the interface
  RingAlarm alarm_;
  UniqueFd program_, link_, sockets_, target_;
  bool is_virtual_ = false;
  std::mutex lock_;
  bool is_claimed_ = false;
};

}  // namespace ringsock::soft
