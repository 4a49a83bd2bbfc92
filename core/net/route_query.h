// A flow's route as a question to the kernel (RTM_GETROUTE), and its answer.
#pragma once

#include <functional>
#include <optional>

#include "core/net/kernel.h"
#include "core/net/netlink_socket.h"

namespace ringsock::net {

/// Makes the question. Returns null without memory, or without a destination.
NetlinkMessage make_route_query(const PathQuery& query);

/// Returns the path in the kernel's answer, nothing when `message` is no RTM_NEWROUTE of the destination's family.
std::optional<PathAnswer> parse_route(const nlmsghdr& message, const PathQuery& query);

/// As NetlinkSocket::ask().
using Ask = std::function<Status(nl_msg* question, const OnMessage& on_answer)>;

/// Asks the kernel. An errno in its answer becomes an unreachable path. Errors: ENOMEM, EINVAL no destination, ENOBUFS,
/// EPROTO.
Result<PathAnswer> ask_path(const PathQuery& query, const Ask& ask);

}  // namespace ringsock::net
