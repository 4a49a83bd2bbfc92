// A TCP port that nobody else takes.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <string>

#include "core/base/unique_fd.h"

namespace ringsock::testing {

/// Holds a port by a bound socket that never listens; a server that sets SO_REUSEADDR may listen on it.
class ReservedPort {
 public:
  ReservedPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    ::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
    socklen_t length = sizeof address;
    ::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &length);
    number_ = ntohs(address.sin_port);
  }
  [[nodiscard]] std::string text() const { return std::to_string(number_); }
  [[nodiscard]] std::uint16_t number() const { return number_; }

 private:
  UniqueFd socket_;
  std::uint16_t number_ = 0;
};

}  // namespace ringsock::testing
