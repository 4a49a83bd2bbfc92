#include "core/engine/tcp/congestion.h"

#include <algorithm>
#include <cmath>

namespace ringsock::engine::tcp {
namespace {

class NewReno : public CongestionControl {
 public:
  void avoid(CongestionWindow& window, std::uint32_t acked, std::uint32_t mss, Nanos, Nanos) override {
    bytes_ += acked;
    if (bytes_ < window.cwnd) return;
    bytes_ -= window.cwnd;
    window.cwnd += mss;
  }
  std::uint32_t reduced(const CongestionWindow& window, std::uint32_t mss) override {
    bytes_ = 0;
    return std::max(window.cwnd / mss / 2, 2U) * mss;
  }
  void undo() override { bytes_ = 0; }

 private:
  std::uint64_t bytes_ = 0;  ///< acknowledged since the window grew
};

/// Windows are in segments, times in seconds, as in the RFC.
class Cubic : public CongestionControl {
 public:
  void avoid(CongestionWindow& window, std::uint32_t acked, std::uint32_t mss, Nanos srtt, Nanos now) override {
    const double cwnd = static_cast<double>(window.cwnd) / mss;
    if (epoch_ < Nanos(0)) begin_epoch(cwnd, now);
    if (const Nanos idle = now - last_ - 2 * srtt; idle > Nanos(0) && last_ >= epoch_) epoch_ += idle;  // 5.8
    last_ = now;
    const double segments = static_cast<double>(acked) / mss;
    const double target = std::clamp(at(seconds_of(now - epoch_) + seconds_of(srtt)), cwnd, 1.5 * cwnd);
    reno_ += (reno_ >= before_ ? 1.0 : kRenoGrowth) * segments / cwnd;
    const double next =
        at(seconds_of(now - epoch_)) < reno_ ? std::max(cwnd, reno_) : cwnd + (target - cwnd) / cwnd * segments;
    fraction_ += (next - cwnd) * mss;
    const double whole = std::floor(fraction_);
    fraction_ -= whole;
    window.cwnd += static_cast<std::uint32_t>(std::clamp(whole, 0.0, 1e9));
  }
  std::uint32_t reduced(const CongestionWindow& window, std::uint32_t mss) override {
    const double cwnd = static_cast<double>(window.cwnd) / mss;
    saved_ = most_;
    most_ = cwnd < most_ ? cwnd * (1 + kBeta) / 2 : cwnd;  // 4.7, fast convergence
    before_ = cwnd;
    epoch_ = Nanos(-1);
    return std::max(static_cast<std::uint32_t>(cwnd * kBeta * mss), 2 * mss);
  }
  void undo() override {
    most_ = saved_;
    epoch_ = Nanos(-1);
  }

 private:
  static constexpr double kBeta = 0.7;
  static constexpr double kC = 0.4;
  static constexpr double kRenoGrowth = 3 * (1 - kBeta) / (1 + kBeta);
  static double seconds_of(Nanos time) { return std::chrono::duration<double>(time).count(); }
  void begin_epoch(double cwnd, Nanos now) {
    epoch_ = now;
    reno_ = cwnd;
    if (most_ < cwnd) most_ = cwnd;
    k_ = std::cbrt((most_ - cwnd) / kC);
  }
  [[nodiscard]] double at(double seconds) const { return kC * std::pow(seconds - k_, 3) + most_; }

  Nanos epoch_{-1};
  Nanos last_{-1};     ///< when the window could grow last
  double most_ = 0;    ///< W_max
  double saved_ = 0;   ///< W_max before the last event
  double before_ = 0;  ///< window before the last event
  double reno_ = 0;    ///< W_est
  double k_ = 0;       ///< seconds from the epoch until W_max
  double fraction_ = 0;
};

}  // namespace

std::unique_ptr<CongestionControl> make_congestion_control(Algorithm algorithm) {
  if (algorithm == Algorithm::new_reno) return std::make_unique<NewReno>();
  return std::make_unique<Cubic>();
}

}  // namespace ringsock::engine::tcp
