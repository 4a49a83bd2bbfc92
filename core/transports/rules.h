// Which sockets may use a way, by the rules of preload_config(5), by those that the program adds, and by what this
// process does.
#pragma once

#include <pthread.h>

#include <string>

#include "core/base/result.h"
#include "core/base/socket_address.h"
#include "core/config/vma_line.h"

namespace ringsock::transports {

/// Returns whether the rules leave sockets of this kind to a way. Called in socket(2), when no address is known yet.
/// Threads: any.
bool permits_socket(int domain, int type, int protocol);
/// Returns whether the rules permit a way for a connection to `address`, or for a listener on it. Threads: any.
/// @param role  tcp_client or tcp_server
bool permits_address(int domain, const SocketAddress& address, config::VmaRole role);
/// The same for datagrams to `address`, or for a UDP socket bound to it.
/// @param role  udp_sender or udp_receiver
bool permits_datagrams(int domain, const SocketAddress& address, config::VmaRole role);
/// Adds a rule of libvma.conf(5) before all others, vma_api_t::add_conf_rule(): what it leaves to "os" uses no way.
/// Errors: EINVAL, logged. Threads: any.
Status add_rule(const std::string& line);
/// Decides for sockets that `thread` makes from now on, vma_api_t::thread_offload(). Errors: ENOMEM. Threads: any.
Status offload_thread(pthread_t thread, bool on);
/// Returns whether stop_offloading() has not been called.
bool is_offloading();
/// Leaves all future sockets to the kernel, because the library does not see all operations on this process's
/// descriptors. Connections on a way stay there. `why` is logged once.
void stop_offloading(const char* why);
/// Calls stop_offloading(), and also leaves sockets and listeners that are on no way yet to the kernel.
void leave_to_kernel(const char* why) noexcept;

}  // namespace ringsock::transports
