// The libc of a hostile client or server: preloaded behind librspreload, it changes what the library says to its peer.
// So an attack is an ordinary program over the real library that lies in one place, whatever the packets look like.
//
//     HOSTILE_RECORD=FILE     each packet that goes out on a link, as "DESCRIPTORS HEX" lines
//     HOSTILE_REPLACE=HEX:HEX the first occurrence of these bytes in each packet is replaced by as many others;
//                             the last one with ":last" behind it
//     HOSTILE_LINGER=PORT     a TCP connection to PORT with SO_LINGER and unsent data goes with each packet
//     HOSTILE_LINGER_FIRST=N  not with the first N packets
//     HOSTILE_APART=1         it is closed here by another thread: when the victim was faster, that close(2) waits, and
//                             nobody shall take it for the attack
//     HOSTILE_SIZE=BYTES      a memfd becomes that large instead of what the library asked for
//     HOSTILE_PORT=PORT       bind(2) of TCP port PORT takes another one and says that it took PORT; the library that
//                             asks the kernel for itself hears the same (sock_diag(7))
//     HOSTILE_STEP=N          the Nth call on an AF_UNIX socket or memfd is the last one ...
//     HOSTILE_THEN=stop|kill  ... before which the process gets SIGSTOP or SIGKILL
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

const char* setting(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr || *text == '\0' ? nullptr : text;
}

long number(const char* name, long otherwise) {
  const char* const text = setting(name);
  return text == nullptr ? otherwise : std::strtol(text, nullptr, 10);
}

bool is_link(int fd) {
  int domain = 0, type = 0;
  socklen_t length = sizeof domain;
  if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0 || domain != AF_UNIX) return false;
  length = sizeof type;
  return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_SEQPACKET;
}

/// One of the steps that HOSTILE_STEP counts.
void step() {
  static std::atomic<long> steps{0};
  static const long last = number("HOSTILE_STEP", 0);
  if (last == 0 || ++steps != last) return;
  const char* const then = setting("HOSTILE_THEN");
  raise(then != nullptr && std::string_view(then) == "kill" ? SIGKILL : SIGSTOP);
}

std::string from_hex(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2)
    out += static_cast<char>(std::strtol(std::string(text.substr(i, 2)).c_str(), nullptr, 16));
  return out;
}

void replace_bytes(std::string& packet) {
  static const char* const rule = setting("HOSTILE_REPLACE");
  if (rule == nullptr) return;
  const std::string_view text(rule);
  const std::size_t colon = text.find(':');
  const std::size_t end = std::min(text.find(':', colon + 1), text.size());
  const std::string old = from_hex(text.substr(0, colon)), fresh = from_hex(text.substr(colon + 1, end - colon - 1));
  const std::size_t at = text.ends_with(":last") ? packet.rfind(old) : packet.find(old);
  if (at != std::string::npos && old.size() == fresh.size()) packet.replace(at, old.size(), fresh);
}

void record(const std::string& packet, std::size_t descriptors) {
  static const char* const file = setting("HOSTILE_RECORD");
  std::FILE* const out = file == nullptr ? nullptr : std::fopen(file, "a");
  if (out == nullptr) return;
  std::fprintf(out, "%zu ", descriptors);
  for (const char byte : packet) std::fprintf(out, "%02x", static_cast<unsigned char>(byte));
  std::fprintf(out, "\n");
  std::fclose(out);
}

/// A connection whose close(2) waits: 5 s to linger, and more unsent data than the other end takes.
int lingering_socket(long port) {
  const int fd = next<int(int, int, int)>("socket")(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (next<int(int, const sockaddr*, socklen_t)>("connect")(fd, reinterpret_cast<sockaddr*>(&address),
                                                            sizeof address) != 0) {
    return -1;
  }
  const linger waits{1, 5};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &waits, sizeof waits);
  static const std::vector<char> data(1 << 20);
  while (next<ssize_t(int, const void*, std::size_t, int)>("send")(fd, data.data(), data.size(), MSG_DONTWAIT) > 0) {
  }
  return fd;
}

/// The descriptors of a message, and ours.
class Descriptors {
 public:
  explicit Descriptors(const msghdr& message) {
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
         header = CMSG_NXTHDR(const_cast<msghdr*>(&message), header)) {
      if (header->cmsg_type != SCM_RIGHTS) continue;
      std::vector<int> more((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
      std::memcpy(more.data(), CMSG_DATA(header), more.size() * sizeof(int));
      fds_.insert(fds_.end(), more.begin(), more.end());
    }
  }
  ~Descriptors() {
    if (ours_ < 0) return;
    const auto close_it = [fd = ours_] { next<int(int)>("close")(fd); };
    if (setting("HOSTILE_APART") != nullptr) {
      std::thread(close_it).detach();
    } else {
      close_it();
    }
  }
  Descriptors(const Descriptors&) = delete;
  Descriptors& operator=(const Descriptors&) = delete;
  [[nodiscard]] std::size_t count() const { return fds_.size(); }
  void add(int fd) {
    ours_ = fd;
    if (fd >= 0) fds_.push_back(fd);
  }
  void put_into(msghdr& message) {
    if (fds_.empty()) return;
    const std::size_t bytes = fds_.size() * sizeof(int);
    message.msg_control = control_.data();
    message.msg_controllen = CMSG_SPACE(bytes);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(bytes);
    std::memcpy(CMSG_DATA(header), fds_.data(), bytes);
  }

 private:
  std::vector<int> fds_;
  int ours_ = -1;
  alignas(cmsghdr) std::array<char, 256> control_{};
};

/// What HOSTILE_LINGER adds to this packet, or -1.
int descriptor_for_packet() {
  static const long port = number("HOSTILE_LINGER", 0), spared = number("HOSTILE_LINGER_FIRST", 0);
  static std::atomic<long> packets{0};
  return port != 0 && packets++ >= spared ? lingering_socket(port) : -1;
}

/// The port that was asked for and what the socket really has, of the one socket that lies.
int lying_socket = -1;

/// The port that it really has, 0 when there is none.
std::uint16_t real_port() {
  sockaddr_in address{};
  socklen_t length = sizeof address;
  const auto real = next<int(int, sockaddr*, socklen_t*)>("getsockname");
  return lying_socket >= 0 && real(lying_socket, reinterpret_cast<sockaddr*>(&address), &length) == 0 ? address.sin_port
                                                                                                      : 0;
}

bool is_netlink(int fd) {
  int domain = 0;
  socklen_t length = sizeof domain;
  return lying_socket >= 0 && getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 && domain == AF_NETLINK;
}

/// In questions and answers of sock_diag(7): one port, in network order, becomes the other.
void exchange_ports(char* message, std::size_t bytes, std::size_t at, std::uint16_t from, std::uint16_t to) {
  for (std::size_t start = 0; start + at + sizeof to <= bytes;) {
    std::uint32_t length = 0;
    std::uint16_t port = 0;
    std::memcpy(&length, message + start, sizeof length);
    std::memcpy(&port, message + start + at, sizeof port);
    if (port == from) std::memcpy(message + start + at, &to, sizeof to);
    if (length < 16) return;
    start += (length + 3) & ~std::size_t{3};
  }
}
constexpr std::size_t kSourcePortAsked = 24, kSourcePortAnswered = 20;

bool lies_about_port(const sockaddr* address) {
  static const long port = number("HOSTILE_PORT", 0);
  return port != 0 && address->sa_family == AF_INET &&
         ntohs(reinterpret_cast<const sockaddr_in*>(address)->sin_port) == port;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  const auto real = next<ssize_t(int, const msghdr*, int)>("sendmsg");
  if (is_netlink(fd) && message->msg_iovlen == 1) {
    const auto told = htons(static_cast<std::uint16_t>(number("HOSTILE_PORT", 0)));
    exchange_ports(static_cast<char*>(message->msg_iov->iov_base), message->msg_iov->iov_len, kSourcePortAsked, told,
                   real_port());
  }
  if (!is_link(fd)) return real(fd, message, flags);
  step();
  std::string packet;
  for (std::size_t i = 0; i < message->msg_iovlen; ++i)
    packet.append(static_cast<const char*>(message->msg_iov[i].iov_base), message->msg_iov[i].iov_len);
  replace_bytes(packet);
  Descriptors descriptors(*message);
  record(packet, descriptors.count());
  descriptors.add(descriptor_for_packet());
  iovec part{packet.data(), packet.size()};
  msghdr changed{};
  changed.msg_iov = &part;
  changed.msg_iovlen = 1;
  descriptors.put_into(changed);
  return real(fd, &changed, flags);
}

ssize_t send(int fd, const void* data, std::size_t length, int flags) {
  const auto real = next<ssize_t(int, const void*, std::size_t, int)>("send");
  if (!is_link(fd) || setting("HOSTILE_LINGER") == nullptr) return real(fd, data, length, flags);
  iovec part{const_cast<void*>(data), length};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  return sendmsg(fd, &message, flags);
}

ssize_t recvmsg(int fd, msghdr* message, int flags) {
  if (is_link(fd)) step();
  const ssize_t got = next<ssize_t(int, msghdr*, int)>("recvmsg")(fd, message, flags);
  if (got > 0 && is_netlink(fd) && message->msg_iovlen == 1) {
    const auto told = htons(static_cast<std::uint16_t>(number("HOSTILE_PORT", 0)));
    const auto bytes = std::min(static_cast<std::size_t>(got), message->msg_iov->iov_len);
    exchange_ports(static_cast<char*>(message->msg_iov->iov_base), bytes, kSourcePortAnswered, real_port(), told);
  }
  return got;
}

int connect(int fd, const sockaddr* address, socklen_t length) {
  if (address != nullptr && address->sa_family == AF_UNIX && is_link(fd)) step();
  return next<int(int, const sockaddr*, socklen_t)>("connect")(fd, address, length);
}

int bind(int fd, const sockaddr* address, socklen_t length) {
  const auto real = next<int(int, const sockaddr*, socklen_t)>("bind");
  if (!lies_about_port(address)) return real(fd, address, length);
  sockaddr_in other = *reinterpret_cast<const sockaddr_in*>(address);
  other.sin_port = 0;
  lying_socket = fd;
  return real(fd, reinterpret_cast<const sockaddr*>(&other), sizeof other);
}

int getsockname(int fd, sockaddr* address, socklen_t* length) {
  const int result = next<int(int, sockaddr*, socklen_t*)>("getsockname")(fd, address, length);
  if (result == 0 && fd == lying_socket && address->sa_family == AF_INET)
    reinterpret_cast<sockaddr_in*>(address)->sin_port = htons(static_cast<std::uint16_t>(number("HOSTILE_PORT", 0)));
  return result;
}

int memfd_create(const char* name, unsigned flags) {
  step();
  return next<int(const char*, unsigned)>("memfd_create")(name, flags);
}

int ftruncate(int fd, off_t bytes) {
  static const long size = number("HOSTILE_SIZE", 0);
  return next<int(int, off_t)>("ftruncate")(fd, size != 0 && bytes > 0 ? std::max<off_t>(size, bytes) : bytes);
}

}  // extern "C"
#pragma GCC visibility pop
