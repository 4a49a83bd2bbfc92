// The real devices for the registry.
#pragma once

#include <memory>

#include "core/device/rdma/calls.h"
#include "core/device/rdma/rdma_devices.h"
#include "core/verbs/registry.h"

namespace ringsock::rdma {

/// Reaches what the route leads to by an interface that is a device's, and can listen on a wildcard: on all devices at
/// once. Not the loopback address: packets to it pass no device. An AF_IB address is for RDMA CM alone to judge. Costs
/// one open(2) a second where there is no RDMA.
std::unique_ptr<verbs::DeviceProvider> make_rdma_provider(RdmaUse use, const Calls& calls = real_calls());

}  // namespace ringsock::rdma
