#include "libvmacompat/process/rings_of_process.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>

#include "core/base/process_state.h"
#include "libvmacompat/process/ring_user.h"
#include "libvmacompat/process/statistics_requests.h"
#include "libvmacompat/process/vma_process.h"
#include "libvmacompat/statistics/vma_statistics.h"

namespace ringsock::vma {

namespace {

using ethernet::RingCount;

/// For each queue of the interface; there may be many queues.
constexpr unsigned kXdpEntries = 1024;
constexpr std::int32_t kHugePages = 2;  ///< VMA_MEM_ALLOC_TYPE

/// Moderation is what programs that sleep pay for, so there is none unless it is asked for.
void set_moderation(const config::VmaConfig& config, ethernet::RingSettings& out) {
  if (!config.cq_moderation_enable) return;
  if (config.cq_moderation_is_set) {
    out.moderation = {.packets = static_cast<std::uint16_t>(config.cq_moderation_count),
                      .period = std::chrono::microseconds(config.cq_moderation_period_usec)};
  }
  if (config.cq_aim_is_set) {
    out.adaptive = {.interval = std::chrono::milliseconds(config.cq_aim_interval_msec),
                    .packets = static_cast<std::uint16_t>(config.cq_aim_max_count),
                    .period = std::chrono::microseconds(config.cq_aim_max_period_usec),
                    .wake_ups_per_second = config.cq_aim_interrupts_rate_per_sec};
  }
}

/// Takes over what is configured. VMA's defaults are not used: they are for network cards, and 16,000 receives would
/// take 32 MB of the kernel's memory and 24 MB of ours for each ring, even if nothing comes.
ethernet::RingSettings ring_settings(const config::VmaConfig& config) {
  ethernet::RingSettings out;
  if (config.xdp) out.receive_entries = kXdpEntries;
  if (config.rx_wre_is_set) out.receive_entries = std::clamp(config.rx_wre, 1U, ethernet::kMostRingEntries);
  if (config.tx_wre_is_set) out.send_entries = std::clamp(config.tx_wre, 2U, ethernet::kMostRingEntries);
  out.sends_per_completion = config.tx_wre_batching;
  out.batch = std::min(config.cq_poll_batch_max, out.batch);
  out.makes_trains = config.tx_bursts;
  constexpr std::int32_t kNoBatches = 0;
  out.spare_buffers = config.buffer_batching_mode == kNoBatches ? 1 : std::clamp(config.qp_compensation_level, 1U, 16U);
  if (config.rx_prefetch_bytes_is_set) out.prefetch_bytes = config.rx_prefetch_bytes;
  if (config.tx_max_inline_is_set) out.most_inline_bytes = config.tx_max_inline;
  set_moderation(config, out);
  out.most_drained = config.progress_engine_interval != 0 ? config.progress_engine_wce_max : 0;
  return out;
}

ethernet::EthernetOptions options_of(const config::VmaConfig& config) {
  return {.interface = {.card_rings = config.card_rings,
                        .xdp = config.xdp,
                        .huge_pages = config.mem_alloc_type == kHugePages,
                        .most_buffers = config.rx_bufs,
                        .packet_bytes = config.mtu,
                        .memory = process().memory()},
          .ring = ring_settings(config),
          .longest_packet = config.mtu,
          .most_rings = config.ring_limit_per_interface,
          .ignores_netfilter = config.ignore_netfilter,
          .netfilter_advice = "; VMA_IGNORE_NETFILTER=1 has rings carry it"};
}

/// Counts in a ring's slot of the statistics page.
class PageCounters final : public ethernet::RingCounters {
 public:
  explicit PageCounters(int ifindex) : slot_(ifindex) {
    using Count = runtime::VmaRingCount;
    using Level = runtime::VmaRingLevel;
    runtime::VmaRingSlot& slot = slot_.slot();
    put(RingCount::rx_packets, slot[Count::rx_packets]);
    put(RingCount::rx_bytes, slot[Count::rx_bytes]);
    put(RingCount::rx_dropped, slot[Count::rx_dropped]);
    put(RingCount::device_drops, slot[Count::device_drops]);
    put(RingCount::interrupts_requested, slot[Count::interrupts_requested]);
    put(RingCount::interrupts_received, slot[Count::interrupts_received]);
    put(RingCount::tx_packets, slot[Count::tx_packets]);
    put(RingCount::tx_bytes, slot[Count::tx_bytes]);
    put(RingCount::tx_joined, slot[Count::tx_joined]);
    put(RingCount::tx_trains, slot[Count::tx_trains]);
    put(RingCount::tx_dropped, slot[Count::tx_dropped]);
    put(RingCount::drained_max, slot[Level::drained_max]);
    put(RingCount::buffers, slot[Level::buffers]);
    put(RingCount::moderation_packets, slot[Level::moderation_packets]);
    put(RingCount::moderation_period_us, slot[Level::moderation_period_us]);
  }

 private:
  runtime::VmaRingStatistics slot_;
};

class RingsOfProcess final : public ethernet::EthernetUser {
 public:
  static constexpr ProcessPart kPart = ProcessPart::rings_of_process;
  [[nodiscard]] const ethernet::EthernetOptions& options() const override { return options_; }
  std::unique_ptr<ethernet::RingCounters> make_counters(int ifindex) override {
    return std::make_unique<PageCounters>(ifindex);
  }
  std::unique_ptr<ethernet::PacketCapture> make_capture() override {
    const std::string& place = process().config.pcap_file;
    if (place.empty()) return nullptr;
    const unsigned number = captures_.fetch_add(1, std::memory_order_relaxed);
    return ethernet::PacketCapture::create(
        place + "." + std::to_string(::getpid()) + "." + std::to_string(number) + ".pcap", capture_bytes_);
  }
  void has_begun() override {
    follow_statistics_requests();
    process().agent.begin();
  }
  void addresses_have_changed() override { for_each_ring_user(&RingUser::follow_addresses); }
  void filters_have_changed() override { for_each_ring_user(&RingUser::follow_netfilter); }

 private:
  const ethernet::EthernetOptions options_ = options_of(process().config);
  std::atomic<unsigned> captures_{0};
  std::atomic<std::uint64_t> capture_bytes_{process().config.pcap_bytes};
};

}  // namespace

ethernet::EthernetUser& rings_of_process() { return process_state<RingsOfProcess>(); }

}  // namespace ringsock::vma
