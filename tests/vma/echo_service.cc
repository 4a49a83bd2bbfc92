// A host's service for tests: sends each datagram to port 7000 (IPv4 and IPv6) back to where it came from; one that
// begins with "twice" it sends twice.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string_view>
#include <vector>

int main() {
  const int fd = ::socket(AF_INET6, SOCK_DGRAM, 0);
  sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  any.sin6_port = htons(7000);
  if (fd < 0 || ::bind(fd, reinterpret_cast<sockaddr*>(&any), sizeof any) != 0) {
    std::perror("echo_service");
    return 1;
  }
  std::puts("ready");
  std::fflush(stdout);
  std::vector<char> data(65536);
  for (;;) {
    sockaddr_in6 from{};
    socklen_t length = sizeof from;
    const ssize_t got = ::recvfrom(fd, data.data(), data.size(), 0, reinterpret_cast<sockaddr*>(&from), &length);
    if (got < 0) continue;
    const auto bytes = static_cast<std::size_t>(got);
    const int times = std::string_view(data.data(), bytes).starts_with("twice") ? 2 : 1;
    for (int i = 0; i < times; ++i) ::sendto(fd, data.data(), bytes, 0, reinterpret_cast<sockaddr*>(&from), length);
  }
}
