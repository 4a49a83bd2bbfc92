// A connection manager's id on a device that the test plays, for tests of what becomes of it.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/device/rdma/rdma_devices.h"
#include "core/device/rdma/rdma_id.h"
#include "tests/unit/device_rdma/fake_rdma.h"

namespace ringsock::rdma {

using verbs::CmEventType;
using verbs::ConnectionParameters;
using verbs::ConnectionQp;

inline const SocketAddress kHere = SocketAddress::v4(0x0a070001, 7471);
inline const SocketAddress kThere = SocketAddress::v4(0x0a070002, 7471);

inline std::vector<std::byte> bytes(std::size_t count, int first = 0) {
  std::vector<std::byte> out(count);
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<std::byte>(first + static_cast<int>(i));
  return out;
}

inline bool is_readable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}

/// The thread that looks after devices, played by the test.
class Watches {
 public:
  Watcher watcher() {
    return [this](int fd, std::function<void()> serve) {
      served_.insert_or_assign(fd, std::move(serve));
      return std::shared_ptr<void>(this, [this, fd](void*) { served_.erase(fd); });
    };
  }
  /// Serves every descriptor that is readable, once.
  void serve() {
    const auto now = served_;
    for (const auto& [fd, serve] : now) {
      if (is_readable(fd)) serve();
    }
  }
  [[nodiscard]] std::size_t count() const { return served_.size(); }

 private:
  std::map<int, std::function<void()>> served_;
};

class RdmaIdTest : public testing::Test {
 protected:
  explicit RdmaIdTest(ibv_transport_type transport = IBV_TRANSPORT_IB) {
    fake_.add_device("rxe0", "10.7.0.1", transport);
    devices_ = std::make_shared<RdmaDevices>(FakeRdma::calls(), RdmaUse{.watch = watches_.watcher()});
    device_ = *devices_->open_first();
    id_ = *device_->create_id(verbs::PortSpace::tcp);
    raw_ = fake_.ids().front();
  }

  CmEventType next(verbs::ConnectionId& id) {
    auto event = id.next_event();
    EXPECT_TRUE(event) << event.error().where;
    if (!event) return CmEventType::connect_error;
    last_ = *std::move(event);
    return last_.type;
  }
  static int nothing(verbs::ConnectionId& id) {
    auto event = id.next_event();
    return event ? 0 : event.error().code;
  }

  /// A queue pair with all that it needs.
  struct Lane {
    verbs::Pd pd;
    verbs::Cq cq;
    ConnectionQp qp;
    ibv_qp_init_attr attr{};
  };
  Lane make_lane(verbs::ConnectionId& id, std::uint32_t inline_bytes = 64) {
    Lane lane;
    lane.pd = *id.device().alloc_pd();
    lane.cq = *id.device().create_cq(16, nullptr, nullptr, 0);
    lane.attr.qp_type = IBV_QPT_RC;
    lane.attr.send_cq = lane.attr.recv_cq = lane.cq.get();
    lane.attr.cap.max_inline_data = inline_bytes;
    auto qp = id.create_qp(*lane.pd, lane.attr, 10000);
    EXPECT_TRUE(qp) << qp.error().where;
    if (qp) lane.qp = *std::move(qp);
    return lane;
  }

  /// As far as the moment before connect().
  Lane resolve() {
    EXPECT_TRUE(id_->resolve_addr(kThere, std::chrono::seconds(1)));
    raw_->id.verbs = context_of_library();
    fake_.report(*raw_, RDMA_CM_EVENT_ADDR_RESOLVED);
    EXPECT_EQ(next(*id_), CmEventType::addr_resolved);
    EXPECT_TRUE(id_->resolve_route(std::chrono::seconds(1)));
    fake_.report(*raw_, RDMA_CM_EVENT_ROUTE_RESOLVED);
    EXPECT_EQ(next(*id_), CmEventType::route_resolved);
    return make_lane(*id_);
  }
  /// What librdmacm has opened, which is not what we have.
  ibv_context* context_of_library() {
    library_context_.device = device_->context().device;
    return &library_context_;
  }
  Lane connect() {
    Lane lane = resolve();
    const auto data = bytes(40);
    ConnectionParameters parameters;
    parameters.private_data = data;
    EXPECT_TRUE(id_->connect(parameters));
    return lane;
  }
  std::unique_ptr<verbs::ConnectionId> listen_and_get_request(rdma_conn_param parameters = {}) {
    EXPECT_TRUE(id_->bind(kHere));
    EXPECT_TRUE(id_->listen(5));
    fake_.request(*raw_, bytes(56), parameters);
    EXPECT_EQ(next(*id_), CmEventType::connect_request);
    return std::move(last_.request);
  }

  FakeRdma fake_;
  Watches watches_;
  ibv_context library_context_{};
  std::shared_ptr<RdmaDevices> devices_;
  std::unique_ptr<RdmaDevice> device_;
  std::unique_ptr<verbs::ConnectionId> id_;
  FakeRdma::Id* raw_ = nullptr;
  verbs::CmEvent last_;
};

class IwarpIdTest : public RdmaIdTest {
 protected:
  IwarpIdTest() : RdmaIdTest(IBV_TRANSPORT_IWARP) {}
};

}  // namespace ringsock::rdma
