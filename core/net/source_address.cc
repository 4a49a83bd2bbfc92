#include "core/net/source_address.h"

#include <sys/socket.h>

#include "core/base/unique_fd.h"

namespace ringsock::net {

Result<SocketAddress> source_address(const SocketAddress& destination) {
  const UniqueFd socket(::socket(destination.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket) return Error::last("source address: socket");
  SocketAddress target = destination;
  if (target.port() == 0) target.set_port(1);  // connect(2) to port 0 is refused, and any other does
  if (::connect(socket.get(), target.get(), target.length()) != 0) return Error::last("source address: connect");
  sockaddr_storage name{};
  socklen_t length = sizeof name;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&name), &length) != 0) {
    return Error::last("source address: getsockname");
  }
  auto source = SocketAddress::from(reinterpret_cast<const sockaddr*>(&name), length);
  if (source) source->set_port(0);
  return source;
}

}  // namespace ringsock::net
