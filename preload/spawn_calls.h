// Programs that are spawned: posix_spawn(3).
#pragma once

namespace ringsock::preload {

/// Returns whether a program that this process spawns would inherit a connection on a way.
bool spawned_inherit_connections();

}  // namespace ringsock::preload
