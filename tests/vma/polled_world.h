// A program that polls a ring for its TCP sockets between two hosts (VMA_SOCKETXTREME=1).
#pragma once

#include "tests/support/extra_api.h"
#include "tests/support/ring_program.h"
#include "tests/vma/tcp_world.h"

namespace ringsock::vma_tests {

using support::api;
using support::bytes_of;
using support::error_of;
using support::ring_of;
using support::RingProgram;

}  // namespace ringsock::vma_tests
