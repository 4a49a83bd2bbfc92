// A host's service for tests: sends each datagram to port 7000 (IPv4 and IPv6) back to where it came from; one that
// begins with "twice" it sends twice, and of "to ADDRESS PORT TEXT" it sends the text there, and "headers?" it answers
// with hop limit and traffic class of the question. It is a member of the
// groups 239.9.0.7 and ff15::907 on eth0, by which it also sends to groups.
#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace {

void join_groups(int fd) {
  const auto eth0 = static_cast<int>(::if_nametoindex("eth0"));
  ip_mreqn v4{};
  ::inet_pton(AF_INET, "239.9.0.7", &v4.imr_multiaddr);
  v4.imr_ifindex = eth0;
  ipv6_mreq v6{};
  ::inet_pton(AF_INET6, "ff15::907", &v6.ipv6mr_multiaddr);
  v6.ipv6mr_interface = static_cast<unsigned>(eth0);
  const int on = 1;
  if (::setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &v4, sizeof v4) != 0 ||
      ::setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &v4, sizeof v4) != 0 ||
      ::setsockopt(fd, IPPROTO_IPV6, IPV6_JOIN_GROUP, &v6, sizeof v6) != 0 ||
      ::setsockopt(fd, IPPROTO_IPV6, IPV6_MULTICAST_IF, &eth0, sizeof eth0) != 0 ||
      ::setsockopt(fd, SOL_SOCKET, SO_BROADCAST, &on, sizeof on) != 0) {
    std::perror("echo_service: groups");
  }
}

/// "to ADDRESS PORT TEXT"
void pass_on(int fd, const std::string& order) {
  std::istringstream words(order);
  std::string to, host, text;
  std::uint16_t port = 0;
  words >> to >> host >> port;
  words.get();
  std::getline(words, text, '\0');
  sockaddr_in6 name{};
  name.sin6_family = AF_INET6;
  name.sin6_port = htons(port);
  if (::inet_pton(AF_INET6, (host.find(':') == std::string::npos ? "::ffff:" + host : host).c_str(), &name.sin6_addr) !=
          1 ||
      ::sendto(fd, text.data(), text.size(), 0, reinterpret_cast<sockaddr*>(&name), sizeof name) < 0) {
    std::perror("echo_service: to");
  }
}

void want_headers(int fd) {
  const int on = 1;
  if (::setsockopt(fd, IPPROTO_IP, IP_RECVTTL, &on, sizeof on) != 0 ||
      ::setsockopt(fd, IPPROTO_IP, IP_RECVTOS, &on, sizeof on) != 0 ||
      ::setsockopt(fd, IPPROTO_IPV6, IPV6_RECVHOPLIMIT, &on, sizeof on) != 0 ||
      ::setsockopt(fd, IPPROTO_IPV6, IPV6_RECVTCLASS, &on, sizeof on) != 0) {
    std::perror("echo_service: headers");
  }
}

int number_of(const cmsghdr& item) {
  int number = 0;
  std::memcpy(&number, CMSG_DATA(&item), item.cmsg_len - CMSG_LEN(0) < sizeof number ? 1 : sizeof number);
  return number;
}

/// "hops 64, class 0"
std::string headers_of(msghdr& message) {
  int hops = -1, traffic_class = -1;
  for (cmsghdr* item = CMSG_FIRSTHDR(&message); item != nullptr; item = CMSG_NXTHDR(&message, item)) {
    const bool is_v4 = item->cmsg_level == IPPROTO_IP;
    if (item->cmsg_type == (is_v4 ? IP_TTL : IPV6_HOPLIMIT)) hops = number_of(*item);
    if (item->cmsg_type == (is_v4 ? IP_TOS : IPV6_TCLASS)) traffic_class = number_of(*item);
  }
  return "hops " + std::to_string(hops) + ", class " + std::to_string(traffic_class);
}

}  // namespace

int main() {
  const int fd = ::socket(AF_INET6, SOCK_DGRAM, 0);
  sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  any.sin6_port = htons(7000);
  if (fd < 0 || ::bind(fd, reinterpret_cast<sockaddr*>(&any), sizeof any) != 0) {
    std::perror("echo_service");
    return 1;
  }
  join_groups(fd);
  want_headers(fd);
  std::puts("ready");
  std::fflush(stdout);
  std::vector<char> data(65536);
  for (;;) {
    sockaddr_in6 from{};
    iovec part{data.data(), data.size()};
    alignas(cmsghdr) char control[256];
    msghdr message{};
    message.msg_name = &from;
    message.msg_namelen = sizeof from;
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t got = ::recvmsg(fd, &message, 0);
    if (got < 0) continue;
    const socklen_t length = message.msg_namelen;
    auto bytes = static_cast<std::size_t>(got);
    if (std::string_view(data.data(), bytes) == "headers?") {
      const std::string answer = headers_of(message);
      bytes = answer.copy(data.data(), data.size());
    }
    if (std::string_view(data.data(), bytes).starts_with("to ")) {
      pass_on(fd, std::string(data.data(), bytes));
      continue;
    }
    const int times = std::string_view(data.data(), bytes).starts_with("twice") ? 2 : 1;
    for (int i = 0; i < times; ++i) ::sendto(fd, data.data(), bytes, 0, reinterpret_cast<sockaddr*>(&from), length);
  }
}
