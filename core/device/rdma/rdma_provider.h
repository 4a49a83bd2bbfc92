// The real devices for the registry.
#pragma once

#include <memory>

#include "core/device/rdma/calls.h"
#include "core/device/rdma/open_context.h"
#include "core/verbs/registry.h"

namespace ringsock::rdma {

/// Reaches what the route leads to by an interface that is a device's, and can listen on a wildcard: on all devices at
/// once. Not the loopback address: packets to it pass no device. An AF_IB address is for RDMA CM alone to judge. Costs
/// one open(2) a second where there is no RDMA.
/// @param watch  looks after the devices' own events: without it a connection hears of its device's failure late
std::unique_ptr<verbs::DeviceProvider> make_rdma_provider(Watcher watch, const Calls& calls = real_calls());

}  // namespace ringsock::rdma
