// Two preload libraries of this project in one program.
#pragma once

#include "preload/socket_ways.h"

namespace ringsock::preload {

/// What a preload library lets the others do. The program calls the functions of the first one in LD_PRELOAD; that one
/// serves the ways of all, and passes on to libc, past the others.
struct Shell {
  /// As dlsym(RTLD_NEXT, name) of the last of them.
  void* (*find_beyond)(const char* name);
  /// From now on the library carries such sockets, too. Threads: constructors.
  void (*carry)(const SocketWay& way);
  /// From now on it carries streams by rsockets. Threads: constructors.
  void (*carry_streams)();
};

/// The library whose functions the program calls.
const Shell& calling_shell();
/// Whether that is this one: what it has of its own beside the calls (the door, the clean-up at the end) is in use.
bool is_calling_shell();

}  // namespace ringsock::preload

extern "C" {
/// By this name the libraries find each other. It returns a Shell. Null: the core's, behind the last of them.
__attribute__((visibility("default"))) const void* ringsock_shell();
}
