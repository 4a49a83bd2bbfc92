// The work of rcopy over kernel TCP, as fast as the kernel does it: sendfile(2) on one side, recv(2) into a mapping on
// the other.
//   tcp_copy PORT DESTINATION     receives one file and ends
//   tcp_copy SOURCE HOST PORT     sends it, and ends when the receiver has all of it
#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/base/unique_fd.h"

namespace {

using ringsock::UniqueFd;

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "tcp_copy: %s: %s\n", what, std::strerror(errno));
  std::exit(1);
}

void receive_all(int socket, void* data, std::size_t length) {
  auto* at = static_cast<char*>(data);
  while (length > 0) {
    const ssize_t got = recv(socket, at, length, 0);
    if (got <= 0) fail("recv");
    at += got;
    length -= static_cast<std::size_t>(got);
  }
}

UniqueFd accept_one(std::uint16_t port) {
  UniqueFd listener(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int on = 1;
  setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) fail("bind");
  if (listen(listener.get(), 1) != 0) fail("listen");
  UniqueFd connection(accept(listener.get(), nullptr, nullptr));
  if (connection.get() < 0) fail("accept");
  return connection;
}

void serve(std::uint16_t port, const char* destination) {
  const UniqueFd connection = accept_one(port);
  std::uint64_t size = 0;
  receive_all(connection.get(), &size, sizeof size);
  const UniqueFd file(open(destination, O_RDWR | O_CREAT | O_TRUNC, 0644));
  if (file.get() < 0 || ftruncate(file.get(), static_cast<off_t>(size)) != 0) fail(destination);
  if (size > 0) {
    void* map = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (map == MAP_FAILED) fail("mmap");
    receive_all(connection.get(), map, size);
    munmap(map, size);
  }
  if (send(connection.get(), "!", 1, MSG_NOSIGNAL) != 1) fail("send");
}

UniqueFd connect_to(const char* host, const char* port) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host, port, &hints, &found) != 0) fail(host);
  UniqueFd connection(socket(found->ai_family, found->ai_socktype, 0));
  if (connect(connection.get(), found->ai_addr, found->ai_addrlen) != 0) fail("connect");
  freeaddrinfo(found);
  return connection;
}

void send_file(const char* source, const char* host, const char* port) {
  const UniqueFd file(open(source, O_RDONLY));
  struct stat status;
  if (file.get() < 0 || fstat(file.get(), &status) != 0) fail(source);
  const UniqueFd connection = connect_to(host, port);
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (send(connection.get(), &size, sizeof size, MSG_NOSIGNAL | MSG_MORE) != sizeof size) fail("send");
  for (off_t at = 0; at < status.st_size;) {
    if (sendfile(connection.get(), file.get(), &at, static_cast<std::size_t>(status.st_size - at)) <= 0)
      fail("sendfile");
  }
  char all_there;
  receive_all(connection.get(), &all_there, 1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3) {
    serve(static_cast<std::uint16_t>(std::strtoul(argv[1], nullptr, 10)), argv[2]);
  } else if (argc == 4) {
    send_file(argv[1], argv[2], argv[3]);
  } else {
    std::fprintf(stderr, "usage: tcp_copy PORT DESTINATION | tcp_copy SOURCE HOST PORT\n");
    return 2;
  }
}
