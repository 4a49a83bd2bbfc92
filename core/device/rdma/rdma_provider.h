// The real devices for the registry.
#pragma once

#include <memory>

#include "core/device/rdma/calls.h"
#include "core/device/rdma/rdma_devices.h"
#include "core/verbs/registry.h"

namespace ringsock::rdma {

/// Makes the provider. It reaches an address whose route uses an interface of a device, and a wildcard, on which it
/// listens on all devices at once. It does not reach the loopback address, because packets to it pass no device. RDMA
/// CM decides about AF_IB addresses. Costs one open(2) a second where there is no RDMA.
std::unique_ptr<verbs::DeviceProvider> make_rdma_provider(RdmaUse use, const Calls& calls = real_calls());

}  // namespace ringsock::rdma
