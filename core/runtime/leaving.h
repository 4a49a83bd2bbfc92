// Endpoints whose descriptors become the kernel's.
#pragma once

namespace ringsock::runtime {

class Endpoint;

/// Leaves all descriptors of the endpoint to the kernel, whose socket is under them. Harmless when called twice. Not
/// inside a read-side section, and without locks.
/// @param fd  usually one of the descriptors
void leave_descriptors(Endpoint& endpoint, int fd);

}  // namespace ringsock::runtime
