#include "librsocket/arrival_stamps.h"

#include <bit>

#include "core/wire/big_endian.h"
#include "core/wire/rs_message.h"
#include "librsocket/work_requests.h"

namespace ringsock::rs {

bool ArrivalStamps::take(std::span<const ibv_wc> completions) {
  for (const ibv_wc& completion : completions) {
    const bool has_word = completion.status == IBV_WC_SUCCESS && (completion.wr_id & kReceiveId) != 0 &&
                          (completion.wc_flags & IBV_WC_WITH_IMM) != 0;
    if (!has_word || completion.vendor_err == 0) continue;
    const auto opcode = wire::rs_message_of(completion.imm_data).opcode;
    if (wire::is_rs_control(opcode) && opcode != wire::RsOpcode::ctrl) continue;
    stamp_.store(completion.vendor_err, std::memory_order_relaxed);
    return true;
  }
  return false;
}

std::uint32_t ArrivalStamps::latest(verbs::Device& device, ibv_qp& qp) {
  if (!asked_.load(std::memory_order_relaxed) && !asked_.exchange(true))
    has_.store(device.rc().ask_for_stamps(qp), std::memory_order_relaxed);
  return stamp_.load(std::memory_order_relaxed);
}

}  // namespace ringsock::rs
