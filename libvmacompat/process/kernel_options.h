// What the options of a kernel socket are now, by getsockopt(2).
#pragma once

#include "core/base/clock.h"

namespace ringsock::vma {

/// Returns a number, or `if_unknown` when the call fails.
int option_of(int fd, int level, int name, int if_unknown);
/// Returns SO_RCVTIMEO or SO_SNDTIMEO, Nanos::max() for none.
Nanos time_out_of(int fd, int name);
/// Returns the index of the interface that SO_BINDTODEVICE has set, or 0.
int bound_interface_of(int fd);
/// Returns which buffer sizes the application has chosen: SOCK_SNDBUF_LOCK, SOCK_RCVBUF_LOCK (SO_BUF_LOCK, kernels
/// since 5.14; 0 before).
int buffer_locks_of(int fd);
/// Returns whether the socket has a filter of packets (SO_ATTACH_FILTER, SO_ATTACH_BPF), or its filter is locked
/// (SO_LOCK_FILTER).
bool has_filter(int fd);

}  // namespace ringsock::vma
