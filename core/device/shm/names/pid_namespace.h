// Tells whether a process belongs to this process's PID namespace: root in a container has the same uid as root of the
// host.
#pragma once

#include <sys/types.h>

#include <string_view>

#include "core/base/clock.h"

namespace ringsock::soft {

/// Returns whether `process`, as numbered by SO_PEERCRED, has as many numbers as this process: one for each PID
/// namespace that contains it. A process of a nested namespace has more. True without /proc. The answer is remembered
/// for a second. Threads: any. Source: proc(5), NSpid.
bool is_of_our_pid_namespace(pid_t process, Nanos now);
/// As is_of_our_pid_namespace(), but also true for a process that has ended.
bool may_be_of_our_pid_namespace(pid_t process, Nanos now);

/// Returns whether `process`, of our PID namespace, may bind privileged ports: effective CAP_NET_BIND_SERVICE. False
/// without /proc. Source: proc(5), CapEff.
bool may_bind_privileged_ports(pid_t process);
/// Returns whether the text of /proc/PID/status shows an effective capability.
bool has_capability(std::string_view status, unsigned capability);

/// Returns how many numbers the process has according to /proc/PID/status, 0 without such a line.
unsigned count_pid_numbers(std::string_view status);

}  // namespace ringsock::soft
