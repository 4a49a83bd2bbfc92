#include "tests/packetdrill/kernel_table.h"

#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace ringsock::packetdrill {
namespace {

/// Reads the packets of the device as they leave, with their time.
struct Device {
  int fd = -1;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::pair<long long, std::vector<char>>> packets;
  std::atomic<bool> ended{false};
  std::thread reader;

  void read_all() {
    std::vector<char> bytes(70'000);
    while (!ended) {
      pollfd wanted{fd, POLLIN, 0};
      if (::poll(&wanted, 1, 20) <= 0) continue;
      const ssize_t got = ::read(fd, bytes.data(), bytes.size());
      if (got <= 0 || !is_tcp(bytes)) continue;
      timeval now{};
      ::gettimeofday(&now, nullptr);
      const std::lock_guard lock(mutex);
      packets.emplace_back(now.tv_sec * 1'000'000LL + now.tv_usec,
                           std::vector<char>(bytes.begin(), bytes.begin() + got));
      changed.notify_one();
    }
  }
  /// Neighbour discovery and the like are not part of scripts.
  static bool is_tcp(const std::vector<char>& packet) { return packet[0] >> 4 == 4 ? packet[9] == 6 : packet[6] == 6; }
};

Device& device(void* data) { return *static_cast<Device*>(data); }

void end(void* data) {
  Device* all = &device(data);
  all->ended = true;
  all->reader.join();
  ::close(all->fd);
  delete all;
}

int open_device() {
  const int fd = ::open("/dev/net/tun", O_RDWR | O_CLOEXEC);
  ifreq wanted{};
  std::strcpy(wanted.ifr_name, "pd0");
  wanted.ifr_flags = IFF_TUN | IFF_NO_PI;
  if (fd >= 0 && ::ioctl(fd, TUNSETIFF, &wanted) == 0) return fd;
  ::close(fd);
  return -1;
}

int call_fcntl(void*, int fd, int command, ...) {
  va_list rest;
  va_start(rest, command);
  const int value = va_arg(rest, int);
  va_end(rest);
  return ::fcntl(fd, command, value);
}

int call_ioctl(void*, int fd, unsigned long request, ...) {
  va_list rest;
  va_start(rest, request);
  void* value = va_arg(rest, void*);
  va_end(rest);
  return ::ioctl(fd, request, value);
}

int receive(void* data, void* to, size_t* size, long long* time_us) {
  Device& all = device(data);
  std::unique_lock lock(all.mutex);
  if (!all.changed.wait_for(lock, std::chrono::seconds(8), [&] { return !all.packets.empty(); })) return *size = 0, -1;
  const auto packet = std::move(all.packets.front());
  all.packets.pop_front();
  *size = std::min(*size, packet.second.size());
  std::memcpy(to, packet.second.data(), *size);
  *time_us = packet.first;
  return 0;
}

void fill(packetdrill_interface& table, Device* all) {
  table.userdata = all;
  table.free = end;
  table.socket = [](void*, int domain, int type, int protocol) {
    const int fd = ::socket(domain, type, protocol);
    if (fd >= 0 && ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5) != 0)
      ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
    return fd;
  };
  table.bind = [](void*, int fd, const sockaddr* address, socklen_t length) { return ::bind(fd, address, length); };
  table.listen = [](void*, int fd, int backlog) { return ::listen(fd, backlog); };
  table.accept = [](void*, int fd, sockaddr* address, socklen_t* length) { return ::accept(fd, address, length); };
  table.connect = [](void*, int fd, const sockaddr* address, socklen_t length) {
    return ::connect(fd, address, length);
  };
  table.read = [](void*, int fd, void* to, size_t size) { return ::read(fd, to, size); };
  table.readv = [](void*, int fd, const iovec* pieces, int count) { return ::readv(fd, pieces, count); };
  table.recv = [](void*, int fd, void* to, size_t size, int flags) { return ::recv(fd, to, size, flags); };
  table.recvfrom = [](void*, int fd, void* to, size_t size, int flags, sockaddr* from, socklen_t* length) {
    return ::recvfrom(fd, to, size, flags, from, length);
  };
  table.recvmsg = [](void*, int fd, msghdr* message, int flags) { return ::recvmsg(fd, message, flags); };
  table.write = [](void*, int fd, const void* from, size_t size) { return ::write(fd, from, size); };
  table.writev = [](void*, int fd, const iovec* pieces, int count) { return ::writev(fd, pieces, count); };
  table.send = [](void*, int fd, const void* from, size_t size, int flags) { return ::send(fd, from, size, flags); };
  table.sendto = [](void*, int fd, const void* from, size_t size, int flags, const sockaddr* to, socklen_t length) {
    return ::sendto(fd, from, size, flags, to, length);
  };
  table.sendmsg = [](void*, int fd, const msghdr* message, int flags) { return ::sendmsg(fd, message, flags); };
  table.fcntl = call_fcntl;
  table.ioctl = call_ioctl;
  table.close = [](void*, int fd) { return ::close(fd); };
  table.shutdown = [](void*, int fd, int how) { return ::shutdown(fd, how); };
  table.getsockopt = [](void*, int fd, int level, int name, void* to, socklen_t* length) {
    return ::getsockopt(fd, level, name, to, length);
  };
  table.setsockopt = [](void*, int fd, int level, int name, const void* from, socklen_t length) {
    return ::setsockopt(fd, level, name, from, length);
  };
  table.poll = [](void*, pollfd* list, nfds_t count, int timeout_ms) { return ::poll(list, count, timeout_ms); };
  table.netdev_send = [](void* data, const void* packet, size_t size) {
    return ::write(device(data).fd, packet, size) == static_cast<ssize_t>(size) ? 0 : -1;
  };
  table.netdev_receive = receive;
  table.usleep = [](void*, useconds_t time) { return ::usleep(time); };
  table.gettimeofday = [](void*, timeval* time, struct timezone*) { return ::gettimeofday(time, nullptr); };
  table.epoll_create = [](void*, int size) { return ::epoll_create(size); };
  table.epoll_ctl = [](void*, int set, int operation, int fd, epoll_event* event) {
    return ::epoll_ctl(set, operation, fd, event);
  };
  table.epoll_wait = [](void*, int set, epoll_event* out, int most, int timeout_ms) {
    return ::epoll_wait(set, out, most, timeout_ms);
  };
  table.pipe = [](void*, int* ends) { return ::pipe(ends); };
  table.splice = [](void*, int in, loff_t* in_at, int out, loff_t* out_at, size_t size, unsigned flags) -> int {
    return static_cast<int>(::splice(in, in_at, out, out_at, size, flags));
  };
}

/// The routes lead through the remote side's first address, as packetdrill's do. Parameters are Linux's defaults.
constexpr const char* kSetUp =
    "set -e; ip link set lo up; ip link set pd0 up mtu 1500 txqueuelen 1000; ip addr add 192.168.0.1/16 dev pd0;"
    "ip route add 192.0.2.0/24 dev pd0; ip -6 addr add fd3d:fa7b:d17d::1/48 dev pd0 nodad;"
    "ip -6 route add 2001:db8::/32 dev pd0; sysctl -qw 'net.ipv4.tcp_rmem=4096 131072 6291456' "
    "'net.ipv4.tcp_wmem=4096 16384 4194304' net.ipv4.tcp_no_metrics_save=1 net.ipv4.tcp_ecn=2;"
    "sysctl -qw net.ipv4.tcp_syn_linear_timeouts=0 || true";

}  // namespace

std::string make_kernel_table(packetdrill_interface& table) {
  ::signal(SIGPIPE, SIG_IGN);
  if (::unshare(CLONE_NEWNET) != 0) return std::string("unshare: ") + std::strerror(errno);
  auto all = std::make_unique<Device>();
  all->fd = open_device();
  if (all->fd < 0) return std::string("/dev/net/tun: ") + std::strerror(errno);
  if (std::system(kSetUp) != 0) return "ip or sysctl failed";
  all->reader = std::thread([it = all.get()] { it->read_all(); });
  fill(table, all.release());
  return {};
}

}  // namespace ringsock::packetdrill
