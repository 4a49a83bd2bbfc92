#include "libvmacompat/udp/receive_options.h"

#include <linux/net_tstamp.h>
#include <netinet/in.h>
#include <sys/time.h>

#include <cstddef>
#include <cstring>

namespace ringsock::vma {

namespace {

// From <asm/socket.h>: on 64-bit hosts libc's names are those of the old layouts.
constexpr int kTimestampOld = 29, kTimestampNsOld = 35, kTimestampNew = 63, kTimestampNsNew = 64;
constexpr int kTimestampingOld = 37, kTimestampingNew = 65;

struct TimeNew {
  std::int64_t seconds, fraction;
};

/// struct scm_timestamping: the time of the kernel, an unused one, the time of the network card.
struct ThreeTimes {
  TimeNew of_kernel, unused, of_card;
};

class ControlWriter {
 public:
  explicit ControlWriter(msghdr& message) : message_(message), room_(message.msg_controllen) {
    message.msg_controllen = 0;
  }
  /// Continues behind items that are there already.
  ControlWriter(msghdr& message, std::size_t room) : message_(message), room_(room) {}
  template <class Value>
  void add(int level, int type, const Value& value) {
    const std::size_t space = CMSG_SPACE(sizeof value);
    if (message_.msg_control == nullptr || room_ - message_.msg_controllen < CMSG_LEN(sizeof value)) {
      message_.msg_flags |= MSG_CTRUNC;
      return;
    }
    cmsghdr header{};
    header.cmsg_len = CMSG_LEN(sizeof value);
    header.cmsg_level = level;
    header.cmsg_type = type;
    std::byte* const place = static_cast<std::byte*>(message_.msg_control) + message_.msg_controllen;
    std::memcpy(place, &header, sizeof header);
    std::memcpy(place + CMSG_LEN(0), &value, sizeof value);
    message_.msg_controllen += std::min(space, room_ - message_.msg_controllen);
  }

 private:
  msghdr& message_;
  const std::size_t room_;
};

Nanos wall_clock() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return std::chrono::seconds(now.tv_sec) + Nanos(now.tv_nsec);
}

void write_time(ControlWriter& out, int option, Nanos time) {
  if (time == Nanos::zero()) time = wall_clock();  // the datagram came before the option was set: as the kernel does
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
  const std::int64_t nanos = (time - seconds).count();
  switch (option) {
    case kTimestampOld: out.add(SOL_SOCKET, option, timeval{seconds.count(), nanos / 1000}); break;
    case kTimestampNsOld: out.add(SOL_SOCKET, option, timespec{seconds.count(), nanos}); break;
    case kTimestampNew: out.add(SOL_SOCKET, option, TimeNew{seconds.count(), nanos / 1000}); break;
    case kTimestampNsNew: out.add(SOL_SOCKET, option, TimeNew{seconds.count(), nanos}); break;
    default: break;
  }
}

}  // namespace

bool ReceiveOptions::note(int level, int name, const void* value, socklen_t length) {
  int number = 0;
  if (value != nullptr) std::memcpy(&number, value, std::min<std::size_t>(length, sizeof number));
  const bool on = number != 0;
  if (level == IPPROTO_IP) {
    switch (name) {
      case IP_PKTINFO: v4_packet_info = on; return true;
      case IP_RECVORIGDSTADDR: v4_original_address = on; return true;
      case IP_RECVTTL: v4_ttl = on; return true;
      case IP_RECVTOS: v4_tos = on; return true;
      default: return false;
    }
  }
  if (level == IPPROTO_IPV6) {
    switch (name) {
      case IPV6_RECVPKTINFO: v6_packet_info = on; return true;
      case IPV6_RECVHOPLIMIT: v6_hop_limit = on; return true;
      case IPV6_RECVTCLASS: v6_traffic_class = on; return true;
      default: return false;
    }
  }
  if (level != SOL_SOCKET) return false;
  switch (name) {
    case SO_RXQ_OVFL: overflow = on; return true;
    case kTimestampOld:
    case kTimestampNsOld:
    case kTimestampNew:
    case kTimestampNsNew: time_stamp = on ? name : 0; return true;
    case kTimestampingOld:
    case kTimestampingNew:
      // Only the kernel has the network card's time of each packet.
      if ((number & (SOF_TIMESTAMPING_RX_HARDWARE | SOF_TIMESTAMPING_RAW_HARDWARE)) != 0) return false;
      time_stamping = (number & SOF_TIMESTAMPING_SOFTWARE) != 0 ? name : 0;
      return true;
    default: return false;
  }
}

void write_control(const ReceiveOptions& options, const ethernet::Packet& datagram, std::uint32_t dropped,
                   msghdr& message) {
  ControlWriter out(message);
  const auto bytes = datagram.headers;
  const wire::FrameLayout& layout = datagram.layout;
  if (options.time_stamp != 0) write_time(out, options.time_stamp, datagram.time);
  if (options.time_stamping != 0 && datagram.time != Nanos::zero()) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(datagram.time);
    out.add(SOL_SOCKET, options.time_stamping,
            ThreeTimes{.of_kernel = {seconds.count(), (datagram.time - seconds).count()}, .unused = {}, .of_card = {}});
  }
  if (options.overflow && dropped != 0) out.add(SOL_SOCKET, SO_RXQ_OVFL, dropped);
  const SocketAddress destination = wire::destination_of(bytes, layout, datagram.ifindex);
  const int hops = wire::hop_limit_of(bytes, layout);
  const int traffic_class = wire::traffic_class_of(bytes, layout);
  if (!layout.is_ipv6) {
    if (options.v4_packet_info) {
      const in_addr address = destination.in4().sin_addr;
      out.add(IPPROTO_IP, IP_PKTINFO, in_pktinfo{datagram.ifindex, address, address});
    }
    if (options.v4_ttl) out.add(IPPROTO_IP, IP_TTL, hops);
    if (options.v4_tos) out.add(IPPROTO_IP, IP_TOS, static_cast<std::uint8_t>(traffic_class));
    if (options.v4_original_address) out.add(IPPROTO_IP, IP_ORIGDSTADDR, destination.in4());
  }
  if (options.v6_packet_info) {
    out.add(IPPROTO_IPV6, IPV6_PKTINFO,
            in6_pktinfo{destination.mapped().in6().sin6_addr, static_cast<unsigned>(datagram.ifindex)});
  }
  if (layout.is_ipv6) {
    if (options.v6_hop_limit) out.add(IPPROTO_IPV6, IPV6_HOPLIMIT, hops);
    if (options.v6_traffic_class) out.add(IPPROTO_IPV6, IPV6_TCLASS, traffic_class);
  }
}

void add_drops(msghdr& message, std::size_t room, std::uint32_t dropped, bool of_kernel_too) {
  for (cmsghdr* item = CMSG_FIRSTHDR(&message); item != nullptr; item = CMSG_NXTHDR(&message, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SO_RXQ_OVFL) continue;
    std::uint32_t kernels = 0;
    std::memcpy(&kernels, CMSG_DATA(item), sizeof kernels);
    kernels = of_kernel_too ? kernels + dropped : dropped;
    std::memcpy(CMSG_DATA(item), &kernels, sizeof kernels);
    return;
  }
  if (dropped != 0) ControlWriter(message, room).add(SOL_SOCKET, SO_RXQ_OVFL, dropped);
}

}  // namespace ringsock::vma
