#include "libvmacompat/tcp/tcp_statistics.h"

#include <chrono>
#include <mutex>

#include "core/engine/tcp/kernel_info.h"
#include "libvmacompat/process/statistics_requests.h"
#include "libvmacompat/tcp/tcp_settings.h"

namespace ringsock::vma {

namespace {

using Count = runtime::VmaSocketCount;
using Level = runtime::VmaSocketLevel;

std::uint64_t micros(Nanos time) {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(time).count());
}

void put(runtime::VmaSocketSlot& out, Count which, std::uint64_t amount) {
  out[which].store(amount, std::memory_order_relaxed);
}

void copy_counts(const engine::tcp::Info& info, runtime::VmaSocketSlot& out) {
  put(out, Count::rx_packets, info.segments_in);
  put(out, Count::rx_bytes, info.bytes_received);
  put(out, Count::rx_out_of_order, info.out_of_order_segments);
  put(out, Count::tx_packets, info.segments_out);
  put(out, Count::tx_bytes, info.bytes_sent);
  put(out, Count::retransmits, info.total_retransmits);
  put(out, Count::tx_time_outs, info.time_outs);
  put(out, Count::tx_reorderings, info.reorderings);
}

void copy_levels(const engine::tcp::Info& info, runtime::VmaSocketStatistics& out) {
  out.set(Level::ready_bytes, info.unread_bytes);
  out.raise(Level::ready_bytes_max, info.unread_bytes);
  out.set(Level::ready_byte_limit, std::uint64_t{info.unread_bytes} + info.rcv_wnd);
  out.set(Level::tx_ready_bytes, std::uint64_t{info.unacked_bytes} + info.unsent_bytes);
  out.set(Level::tcp_state, static_cast<std::uint64_t>(engine::tcp::kernels_state_of(info.state)));
  out.set(Level::tcp_rtt_us, micros(info.srtt));
  out.set(Level::tcp_rttvar_us, micros(info.rttvar));
  out.set(Level::tcp_cwnd, info.cwnd_bytes);
  out.set(Level::tcp_in_flight, info.in_flight_bytes);
}

}  // namespace

void TcpStatistics::show(const engine::tcp::Info& info, const runtime::VmaSocketDescription& description) {
  const std::lock_guard guard(lock_);
  if (is_over_) return;
  if (!entry_) entry_.emplace();
  entry_->describe(description);
  copy_counts(info, entry_->slot());
  copy_levels(info, *entry_);
  put(entry_->slot(), Count::rx_eagains, receive_eagains_.load(std::memory_order_relaxed));
  put(entry_->slot(), Count::tx_eagains, send_eagains_.load(std::memory_order_relaxed));
  put(entry_->slot(), Count::tx_dummies, dummies_.load(std::memory_order_relaxed));
}

void TcpStatistics::write_file() {
  const std::lock_guard guard(lock_);
  if (entry_) write_statistics_file(entry_->slot());
}

void TcpStatistics::forget() noexcept {
  const std::lock_guard guard(lock_);
  is_over_ = true;
  entry_.reset();
}

}  // namespace ringsock::vma
