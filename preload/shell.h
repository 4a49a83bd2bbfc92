// Two preload libraries of this project in one program.
#pragma once

#include "preload/socket_ways.h"

namespace ringsock::preload {

/// What a preload library offers the others. The program calls the functions of the first one in LD_PRELOAD, which
/// serves the ways of all and passes other calls on to libc, past the other libraries.
struct Shell {
  /// dlsym(RTLD_NEXT, name) from the last of these libraries.
  void* (*find_beyond)(const char* name);
  /// Makes the library serve such sockets, too. Threads: constructors.
  void (*carry)(const SocketWay& way);
  /// Makes the library serve streams by rsockets. Threads: constructors.
  void (*carry_streams)();
};

/// Returns the library whose functions the program calls.
const Shell& calling_shell();
/// Returns whether that is this library: its own parts beside the calls (the door, the clean-up at exit) are in use.
bool is_calling_shell();

}  // namespace ringsock::preload

extern "C" {
/// The name by which the libraries find each other. Returns a Shell. The core's function of this name, which is found
/// behind the last library, returns null.
__attribute__((visibility("default"))) const void* ringsock_shell();
}
