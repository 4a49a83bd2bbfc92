// What programs of libc's sockets on one host share. They know nothing of ringsock.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

[[noreturn]] inline void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

inline sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

/// Returns a listener on a port that is free, and its name.
inline int listen_anywhere(int backlog, sockaddr_in& address) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  address = loopback(0);
  socklen_t length = sizeof address;
  if (::bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) fail("bind");
  if (::listen(listener, backlog) != 0) fail("listen");
  if (::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0) fail("getsockname");
  return listener;
}
