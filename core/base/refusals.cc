#include "core/base/refusals.h"

#include "core/base/log.h"
#include "core/base/process_state.h"

namespace ringsock {

namespace {

struct Refusals {
  static constexpr ProcessPart kPart = ProcessPart::refusals;
  RefusalCounters own{};
  std::atomic<RefusalCounters*> counters{&own};  ///< own, or those of the statistics page
};

std::atomic<RefusalCounters*>& counters() { return process_state<Refusals>().counters; }

[[gnu::constructor]] void start() { counters(); }

}  // namespace

const char* to_string(Refusal refusal) {
  switch (refusal) {
    case Refusal::descriptor: return "descriptor";
    case Refusal::segment_size: return "segment size";
    case Refusal::user_budget: return "user budget";
    case Refusal::request: return "request";
    case Refusal::address: return "address";
    case Refusal::port_owner: return "port owner";
    case Refusal::patience: return "patience";
    case Refusal::port_claim: return "port claim";
    case Refusal::other_process: return "other process";
    case Refusal::datagram: return "datagram";
    case Refusal::receive_buffer: return "receive buffer";
  }
  return "?";
}

void count_refusal(Refusal refusal) noexcept {
  log_info("refused: %s", to_string(refusal));
  (*counters().load(std::memory_order_acquire))[static_cast<std::size_t>(refusal)].fetch_add(1,
                                                                                             std::memory_order_relaxed);
}

std::uint64_t refusals_counted(Refusal refusal) noexcept {
  return (*counters().load(std::memory_order_acquire))[static_cast<std::size_t>(refusal)].load(
      std::memory_order_relaxed);
}

void show_refusals_in(RefusalCounters& place) noexcept {
  RefusalCounters& before = *counters().exchange(&place, std::memory_order_acq_rel);
  if (&before == &place) return;
  for (std::size_t i = 0; i < kRefusals; ++i) {
    const std::uint64_t count = before[i].exchange(0, std::memory_order_relaxed);
    if (count != 0) place[i].fetch_add(count, std::memory_order_relaxed);
  }
}

}  // namespace ringsock
