#include "core/device/rdma/id_options.h"

#include <cstdint>
#include <utility>

#include "core/base/log.h"

namespace ringsock::rdma {

namespace {

/// The time to wait for an acknowledgement before sending again: 4.096 us << 16, 268 ms. Newer kernels use it on
/// Ethernet; older ones wait four times as long.
constexpr std::uint8_t kAckTimeout = 16;

}  // namespace

void IdOptions::set(int name, void* value, std::size_t length) {
  if (calls_.set_option(id_, RDMA_OPTION_ID, name, value, length) != 0) log_debug("rdma_set_option %d refused", name);
}

void IdOptions::shorten_ack_timeout() {
  std::uint8_t timeout = kAckTimeout;
  set(RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof timeout);
}

void IdOptions::set_once() {
  if (std::exchange(are_set_, true)) return;
  int on = 1;
  if (reuse_address_) set(RDMA_OPTION_ID_REUSEADDR, &on, sizeof on);
  int v6_only = v6_only_ ? 1 : 0;
  set(RDMA_OPTION_ID_AFONLY, &v6_only, sizeof v6_only);
  // The kernel takes one byte, and a route of that class.
  if (type_of_service_ != 0) set(RDMA_OPTION_ID_TOS, &type_of_service_, sizeof type_of_service_);
  shorten_ack_timeout();
}

}  // namespace ringsock::rdma
