// One ring with posted receives, and frames to send through it.
#pragma once

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "core/device/packet/packet_device.h"
#include "core/verbs/flow_rule.h"
#include "core/wire/ethernet_frame.h"
#include "core/wire/ip.h"
#include "core/wire/udp.h"
#include "tests/unit/device_packet/net_world.h"

namespace ringsock::testing {

template <class T>
T must(Result<T> result) {
  if (!result) throw std::runtime_error(std::string(result.error().where) + ": " + std::strerror(result.error().code));
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

/// RINGSOCK_TEST_RING=xdp: the same tests with the other kind of ring.
inline soft::RingKind tested_kind() {
  const char* kind = std::getenv("RINGSOCK_TEST_RING");
  return kind != nullptr && std::string_view(kind) == "xdp" ? soft::RingKind::xdp : soft::RingKind::packet;
}
inline soft::XdpMode tested_mode() {
  const char* mode = std::getenv("RINGSOCK_TEST_XDP_MODE");
  if (mode == nullptr) return soft::XdpMode::automatic;
  return std::string_view(mode) == "native" ? soft::XdpMode::native : soft::XdpMode::generic;
}

struct RingOptions {
  std::size_t buffer_bytes = 2048;
  std::uint32_t receives = 256;  ///< posted at the start, and again after each is taken
  soft::PacketDeviceOptions device{};
};

/// What arrived: the frame, and what its completion said.
struct Arrival {
  std::string frame;
  unsigned wc_flags = 0;

  /// Behind Ethernet (without tag), IP and UDP.
  [[nodiscard]] std::string payload() const {
    const bool six = frame.size() > 14 && (frame[14] >> 4) == 6;
    return frame.size() >= 42 ? frame.substr(14 + (six ? 40 : 20) + 8) : "?";
  }
};

/// Everything somebody needs on one interface.
class TestRing {
 public:
  explicit TestRing(const Host& host, RingOptions options = {}) : options_(options) {
    InNamespace there(host.space.get());
    if (tested_kind() == soft::RingKind::xdp) {
      options.device.ring = soft::RingKind::xdp;
      options.device.xdp_mode = tested_mode();
    }
    device = must(soft::PacketDevice::open(host.ifindex, options.device));
    pd = must(device->alloc_pd());
    memory.resize(options.buffer_bytes * std::max(options.receives, 1U));
    mr = must(device->reg_mr(*pd, memory.data(), memory.size(), IBV_ACCESS_LOCAL_WRITE));
    channel = must(device->create_comp_channel());
    receive_cq = must(device->create_cq(4096, nullptr, channel.get(), 0));
    send_cq = must(device->create_cq(4096, nullptr, nullptr, 0));
    ibv_qp_init_attr attr{};
    attr.send_cq = send_cq.get();
    attr.recv_cq = receive_cq.get();
    attr.cap = {.max_send_wr = 256,
                .max_recv_wr = options.receives,
                .max_send_sge = 4,
                .max_recv_sge = 1,
                .max_inline_data = 0};
    attr.qp_type = IBV_QPT_RAW_PACKET;
    qp = must(device->create_qp(*pd, attr));
    must(verbs::start_raw_packet_qp(*device, *qp));
    for (std::uint32_t i = 0; i < options.receives; ++i) post(i);
  }

  void post(std::uint64_t index) {
    ibv_sge sge{reinterpret_cast<std::uint64_t>(buffer(index)), static_cast<std::uint32_t>(options_.buffer_bytes),
                mr->lkey};
    ibv_recv_wr wr{.wr_id = index, .next = nullptr, .sg_list = &sge, .num_sge = 1};
    ibv_recv_wr* bad = nullptr;
    if (ibv_post_recv(qp.get(), &wr, &bad) != 0) throw std::runtime_error("ibv_post_recv");
  }
  [[nodiscard]] std::byte* buffer(std::uint64_t index) { return memory.data() + index * options_.buffer_bytes; }

  verbs::Flow take(verbs::FlowTuple tuple) { return must(try_take(tuple)); }
  Result<verbs::Flow> try_take(const verbs::FlowTuple& tuple) {
    verbs::FlowRule rule(tuple);
    return verbs::create_flow(*device, *qp, rule.attr());
  }

  /// The next frame, spinning.
  std::optional<Arrival> receive(std::chrono::milliseconds limit = std::chrono::seconds(5)) {
    const auto end = std::chrono::steady_clock::now() + limit;
    do {
      ibv_wc wc;
      if (ibv_poll_cq(receive_cq.get(), 1, &wc) == 1) return take_arrival(wc);
    } while (std::chrono::steady_clock::now() < end);
    return std::nullopt;
  }
  /// The next frame, asleep on the channel.
  std::optional<Arrival> receive_asleep() {
    for (;;) {
      ibv_req_notify_cq(receive_cq.get(), 0);
      ibv_wc wc;
      if (ibv_poll_cq(receive_cq.get(), 1, &wc) == 1) return take_arrival(wc);
      if (!sleep()) return std::nullopt;
    }
  }
  /// Until the channel has an event. False: none came in 10 s.
  bool sleep() {
    for (;;) {
      pollfd waiting{channel->fd, POLLIN, 0};
      if (::poll(&waiting, 1, 10'000) != 1) return false;
      auto cq = device->get_cq_event(*channel);
      if (!cq) continue;
      device->ack_cq_events(**cq, 1);
      return true;
    }
  }

  /// An errno value, or 0.
  int send(std::string_view frame, unsigned flags = IBV_SEND_IP_CSUM) {
    ibv_sge sge{reinterpret_cast<std::uint64_t>(frame.data()), static_cast<std::uint32_t>(frame.size()), 0};
    ibv_send_wr wr{};
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = flags | IBV_SEND_INLINE;
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(qp.get(), &wr, &bad);
  }
  [[nodiscard]] verbs::PacketCounters counters() { return must(device->packet_counters(*qp)); }

  // Parents first.
  std::unique_ptr<soft::PacketDevice> device;
  verbs::Pd pd;
  std::vector<std::byte> memory;
  verbs::Mr mr;
  verbs::CompChannel channel;
  verbs::Cq receive_cq, send_cq;
  verbs::Qp qp;

 private:
  Arrival take_arrival(const ibv_wc& wc) {
    if (wc.status != IBV_WC_SUCCESS) throw std::runtime_error(ibv_wc_status_str(wc.status));
    Arrival out{{reinterpret_cast<const char*>(buffer(wc.wr_id)), wc.byte_len}, wc.wc_flags};
    post(wc.wr_id);
    return out;
  }
  RingOptions options_;
};

/// The headers of a UDP datagram from one host to another, and its payload; checksums are zero.
inline std::string udp_frame(const Host& from, std::uint16_t source_port, const Host& to,
                             std::uint16_t destination_port, std::string_view payload, int family = AF_INET) {
  std::string frame;
  const auto append = [&](const auto& header) { frame.append(reinterpret_cast<const char*>(&header), sizeof header); };
  const auto udp_bytes = static_cast<std::uint16_t>(sizeof(wire::UdpHeader) + payload.size());
  append(wire::EthernetHeader{to.mac, from.mac,
                              wire::Be16(family == AF_INET ? wire::kEtherTypeIpv4 : wire::kEtherTypeIpv6)});
  if (family == AF_INET) {
    auto ip = wire::make_ipv4_header({.payload_bytes = udp_bytes,
                                      .protocol = wire::kIpProtocolUdp,
                                      .source = wire::Be32(ntohl(from.v4.in4().sin_addr.s_addr)),
                                      .destination = wire::Be32(ntohl(to.v4.in4().sin_addr.s_addr))});
    ip.checksum = {};
    append(ip);
  } else {
    wire::Ipv6Fields fields{
        .payload_bytes = udp_bytes, .next_header = wire::kIpProtocolUdp, .source = {}, .destination = {}};
    std::memcpy(&fields.source, &from.v6.in6().sin6_addr, sizeof fields.source);
    std::memcpy(&fields.destination, &to.v6.in6().sin6_addr, sizeof fields.destination);
    append(wire::make_ipv6_header(fields));
  }
  append(wire::make_udp_header(wire::Be16(source_port), wire::Be16(destination_port),
                               static_cast<std::uint16_t>(payload.size())));
  return frame.append(payload);
}

}  // namespace ringsock::testing
