// A ring whose datagrams bypass the kernel's network stack, by AF_XDP sockets.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "core/base/biased_mutex.h"
#include "core/base/unique_fd.h"
#include "core/device/packet/ring/frame_ring.h"
#include "core/device/packet/xdp/xdp_path.h"

namespace ringsock::soft {

/// Small UDP packets use AF_XDP. All other packets of the ring use the packet socket that the ring also has: TCP,
/// groups, packets for segmentation, packets larger than a frame or than the smallest MTU.
class XdpRing final : public FrameRing {
 public:
  /// `packets` is the ring with the same number. Errors: those of XdpPath::claim(), and EMFILE; then `packets` is
  /// unchanged.
  static Result<std::unique_ptr<FrameRing>> create(XdpPath& path, unsigned frames, std::unique_ptr<FrameRing>& packets);
  XdpRing(const XdpRing&) = delete;
  XdpRing& operator=(const XdpRing&) = delete;
  ~XdpRing() override;

  const RingFrame* front() override;
  void pop() override;
  Result<std::size_t> send(std::span<const OutgoingFrame> frames) override;
  [[nodiscard]] int descriptor() const override { return epoll_.get(); }
  bool listen(bool on) override;
  [[nodiscard]] std::array<int, 2> alarms() const override {
    return {packets_->alarms()[0], path_.alarm().descriptor()};
  }
  void silence_alarms() override {
    packets_->silence_alarms();
    path_.alarm().silence();
  }
  bool look() override;
  Counters counters() override;
  [[nodiscard]] unsigned number() const override { return packets_->number(); }
  void forget() override;

 private:
  enum class From { nothing, socket, packets };
  XdpRing(XdpPath& path, std::vector<XdpSocket> sockets) : path_(path), sockets_(std::move(sockets)) {}
  bool read_sockets();
  std::uint64_t wallclock_ns(std::uint64_t monotonic_ns);
  void compare_clocks();

  XdpPath& path_;
  std::unique_ptr<FrameRing> packets_;
  std::vector<XdpSocket> sockets_;  ///< one for each queue, by number; the first one sends
  UniqueFd epoll_;

  From from_ = From::nothing;
  std::size_t at_ = 0;  ///< the socket that was read last
  RingFrame frame_;
  std::uint64_t clocks_compared_ = 0;   ///< CLOCK_MONOTONIC, ns
  std::uint64_t clock_difference_ = 0;  ///< CLOCK_REALTIME minus CLOCK_MONOTONIC, ns

  BiasedMutex send_lock_;
  std::uint64_t tx_dropped_ = 0;  ///< send_lock_ held
  std::atomic<std::uint64_t> tx_calls_{0};
};

}  // namespace ringsock::soft
