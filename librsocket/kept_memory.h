// Memory that the device keeps for connections to come, and gives back after a time without use.
#pragma once

#include "core/verbs/device.h"

namespace ringsock::rs {

/// Has the service thread call verbs::RcExtensions::give_back_sparse() once a second, until nothing is left. Where no
/// thread can be started the memory stays until the connections of the process replace it. Threads: any.
/// @param device  lives as long as the process
void give_back_later(verbs::Device& device);

}  // namespace ringsock::rs
