// What the options of a kernel TCP socket mean for its connection on a ring.
#pragma once

#include <netinet/tcp.h>

#include <cstddef>
#include <cstdint>

#include "core/engine/tcp/settings.h"
#include "core/ethernet/send_options.h"
#include "core/runtime/endpoint.h"

namespace ringsock::vma {

/// Returns the options for the IP headers of a connection over `family`.
ethernet::SendOptions tcp_send_options_of(int fd, int family);
/// Returns Settings::mtu_payload for packets of so many bytes behind the IP header.
std::uint16_t tcp_payload_of(std::size_t packet_payload);
/// Gives a new socket the options of VMA_TCP_NODELAY, VMA_MSS and VMA_TCP_CC_ALGO. What listeners have, their
/// connections inherit.
void set_first_options(int fd);
/// @param packet_payload  the most bytes that a packet has behind the IP header
engine::tcp::Settings tcp_settings_of(int fd, std::size_t packet_payload);
/// SO_REUSEADDR: whether a listener may be bound to the connection's port, also while it is in TIME-WAIT.
bool reuses_address(int fd);
void reuse_address(int fd, bool on);
/// Returns whether the socket has been given an option that only the kernel can carry out, or that is not known here.
bool has_kernels_options(int fd);

/// The effect of an option that is set while a ring carries the connection.
enum class TcpOptionEffect {
  kernels,   ///< the kernel's socket has it, and needs nothing else
  settings,  ///< changes the engine's settings
  endpoint,  ///< SO_RCVTIMEO, SO_SNDTIMEO, SO_RCVLOWAT
  quick_ack,
  header,       ///< changes the packets' IP headers
  kernel_only,  ///< the connection goes back to the kernel
};
TcpOptionEffect effect_of_tcp_option(int level, int name);
/// Returns whether an option of level IPPROTO_TCP cannot be recognised later on the socket, and only the kernel carries
/// it out.
bool is_kernels_protocol_option(int name);
/// Copies time limits and SO_RCVLOWAT of the kernel's socket to the endpoint.
void learn_stream_values(runtime::Endpoint& endpoint, int fd);
}  // namespace ringsock::vma
