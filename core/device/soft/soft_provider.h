// The embedded device for the registry.
#pragma once

#include <memory>

#include "core/device/soft/soft_device.h"
#include "core/verbs/registry.h"

namespace ringsock::soft {

/// Reaches the addresses of this network namespace, and can listen on a wildcard.
std::unique_ptr<verbs::DeviceProvider> make_soft_provider(SoftAbilities abilities = {});

}  // namespace ringsock::soft
