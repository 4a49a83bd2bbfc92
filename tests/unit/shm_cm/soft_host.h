// A program on the embedded device: what the stories about connection ids need.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <memory>
#include <string_view>

#include "core/device/shm/cm/soft_id.h"
#include "core/device/shm/soft_device.h"

namespace ringsock::tests {

using soft::SoftId;
using verbs::CmEvent;
using verbs::CmEventType;
using verbs::ConnectionId;
using verbs::ConnectionParameters;
using verbs::PortSpace;

inline const SocketAddress kLoopback = SocketAddress::v4(INADDR_LOOPBACK, 0);

inline std::span<const std::byte> bytes(std::string_view text) { return std::as_bytes(std::span(text)); }
inline std::string text(const CmEvent& event) {
  return {reinterpret_cast<const char*>(event.private_data.data()), event.private_data_bytes};
}
inline ConnectionParameters with(std::string_view private_data) {
  ConnectionParameters out;
  out.private_data = bytes(private_data);
  return out;
}

/// The id's next event. Sleeps as a program does: on event_fd(), until next_deadline(). Fails after 10 s.
inline CmEvent next(ConnectionId& id) {
  const Nanos give_up = monotonic_now() + std::chrono::seconds(10);
  for (;;) {
    auto event = id.next_event();
    if (event) return std::move(*event);
    const Nanos now = monotonic_now();
    if (event.error().code != EAGAIN || now >= give_up) {
      ADD_FAILURE() << "no event: " << event.error().where;
      CmEvent none;
      none.type = CmEventType::device_removal;
      return none;
    }
    const Nanos until = std::min(id.next_deadline().value_or(give_up), give_up);
    const Nanos rest = std::max(until - now, Nanos(0));
    const timespec wait{rest.count() / 1'000'000'000, rest.count() % 1'000'000'000};
    pollfd entry{id.event_fd(), POLLIN, 0};
    ::ppoll(&entry, 1, &wait, nullptr);
  }
}

/// A device with a protection domain and a completion queue, with a channel if asked for.
struct SoftHost {
  std::unique_ptr<soft::SoftDevice> device;
  verbs::Pd pd;
  verbs::CompChannel channel;
  verbs::Cq cq;

  explicit SoftHost(bool with_channel = false) {
    device = std::move(*soft::SoftDevice::open());
    pd = std::move(*device->alloc_pd());
    if (with_channel) channel = std::move(*device->create_comp_channel());
    cq = std::move(*device->create_cq(64, nullptr, channel.get(), 0));
  }

  std::unique_ptr<ConnectionId> id(PortSpace space = PortSpace::tcp, soft::SoftIdLimits limits = {}) {
    return std::make_unique<SoftId>(device->id_host(), space, limits);
  }
  std::unique_ptr<ConnectionId> listener(const SocketAddress& address = kLoopback, int backlog = 8,
                                         PortSpace space = PortSpace::tcp) {
    auto out = id(space);
    EXPECT_TRUE(out->bind(address));
    EXPECT_TRUE(out->listen(backlog));
    return out;
  }
  verbs::ConnectionQp queue_pair(ConnectionId& of, ibv_qp_type type = IBV_QPT_RC, std::size_t receive_bytes = 4096) {
    ibv_qp_init_attr attr{};
    attr.send_cq = attr.recv_cq = cq.get();
    attr.cap = {8, 8, 1, 1, 64};
    attr.qp_type = type;
    auto made = of.create_qp(*pd, attr, receive_bytes);
    EXPECT_TRUE(made) << made.error().where;
    return made ? std::move(*made) : verbs::ConnectionQp{};
  }
  ibv_qp_state state(ibv_qp& qp) {
    ibv_qp_attr attr{};
    ibv_qp_init_attr init{};
    EXPECT_TRUE(device->query_qp(qp, attr, IBV_QP_STATE, init));
    return attr.qp_state;
  }
};

/// One end of a connection. The queue pair goes first, as the interface asks.
struct End {
  std::unique_ptr<ConnectionId> id;
  verbs::ConnectionQp qp;
  void close() {
    qp = {};
    id.reset();
  }
};

inline void resolve(ConnectionId& id, const SocketAddress& to) {
  ASSERT_TRUE(id.resolve_addr(to, std::chrono::seconds(1)));
  ASSERT_EQ(next(id).type, CmEventType::addr_resolved);
  ASSERT_TRUE(id.resolve_route(std::chrono::seconds(1)));
  ASSERT_EQ(next(id).type, CmEventType::route_resolved);
}

/// An id that has sent its connect request.
inline End start_connect(SoftHost& host, const SocketAddress& to, const ConnectionParameters& parameters = {},
                         soft::SoftIdLimits limits = {}) {
  End out{host.id(PortSpace::tcp, limits), {}};
  resolve(*out.id, to);
  out.qp = host.queue_pair(*out.id);
  EXPECT_TRUE(out.id->connect(parameters));
  return out;
}  // NOLINT(clang-analyzer-cplusplus.NewDeleteLeaks): End owns it

inline End take_request(SoftHost& host, ConnectionId& listener) {
  CmEvent event = next(listener);
  EXPECT_EQ(event.type, CmEventType::connect_request);
  End out{std::move(event.request), {}};
  if (out.id) out.qp = host.queue_pair(*out.id);
  return out;
}

struct Connection {
  End client;
  End server;
};
inline Connection connect(SoftHost& host, ConnectionId& listener) {
  Connection out;
  out.client = start_connect(host, listener.local_address());
  out.server = take_request(host, listener);
  EXPECT_TRUE(out.server.id->accept({}));
  EXPECT_EQ(next(*out.server.id).type, CmEventType::established);
  EXPECT_EQ(next(*out.client.id).type, CmEventType::established);
  return out;
}

}  // namespace ringsock::tests
