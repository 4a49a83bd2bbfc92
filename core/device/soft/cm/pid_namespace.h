// Whether a process is of this one's PID namespace: a container's root has the number of the host's root, and shows it.
#pragma once

#include <sys/types.h>

#include <string_view>

#include "core/base/clock.h"

namespace ringsock::soft {

/// Whether `process`, as SO_PEERCRED has numbered it, has as many numbers as this process has: one for each namespace
/// that it is in. A process of a namespace below this one has more. True where there is no /proc to ask.
/// What was found holds for a second. Threads: any. Source: proc(5), NSpid.
bool is_of_our_pid_namespace(pid_t process, Nanos now);
/// The same, and true of a process that has ended.
bool may_be_of_our_pid_namespace(pid_t process, Nanos now);

/// Whether `process`, of our PID namespace, may bind privileged ports: CAP_NET_BIND_SERVICE, effective. False where
/// there is no /proc to ask. Source: proc(5), CapEff.
bool may_bind_privileged_ports(pid_t process);
/// The same of the text of /proc/PID/status.
bool has_capability(std::string_view status, unsigned capability);

/// How many numbers /proc/PID/status tells; 0: it has no such line.
unsigned count_pid_numbers(std::string_view status);

}  // namespace ringsock::soft
