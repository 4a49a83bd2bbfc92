// The embedded device for the registry.
#pragma once

#include <memory>

#include "core/device/shm/soft_device.h"
#include "core/verbs/registry.h"

namespace ringsock::soft {

/// Makes the provider. It reaches the addresses of this network namespace and can listen on a wildcard.
std::unique_ptr<verbs::DeviceProvider> make_soft_provider(SoftAbilities abilities = {});

/// Returns whether the descriptor is the link under a connection, of this process or another one. Threads: any.
bool is_link(int fd) noexcept;

}  // namespace ringsock::soft
