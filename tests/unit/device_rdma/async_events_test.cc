// What a device reports without being asked, and who hears of it.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <thread>

#include "tests/unit/device_rdma/rdma_id_fixture.h"

namespace ringsock::rdma {
namespace {

class DeviceEventsTest : public RdmaIdTest {
 protected:
  Lane establish() {
    Lane lane = connect();
    fake_.report(*raw_, RDMA_CM_EVENT_CONNECT_RESPONSE);
    EXPECT_EQ(next(*id_), CmEventType::established);
    return lane;
  }
  [[nodiscard]] bool is_dead(const Lane& lane) {
    return fake_.queue_pair(lane.qp.qp.get()).states().back() == IBV_QPS_ERR;
  }
};

TEST_F(DeviceEventsTest, AFailureOfTheQueuePairEndsItsConnection) {
  const struct {
    ibv_event_type reported;
    int error;
  } kFailures[] = {
      {IBV_EVENT_QP_FATAL, EIO}, {IBV_EVENT_QP_ACCESS_ERR, ECONNRESET}, {IBV_EVENT_QP_REQ_ERR, ECONNRESET}};
  Lane lane = establish();
  for (const auto& failure : kFailures) {
    auto id = *device_->create_id(verbs::PortSpace::tcp);
    Lane other = make_lane(*id);
    fake_.report(failure.reported, other.qp.qp.get());
    watches_.serve();
    EXPECT_TRUE(is_dead(other));
    // So the peer hears of it, and the kernel reports something on this id, which wakes who waits for that.
    EXPECT_EQ(fake_.ids().back()->count("disconnect"), 1);
    EXPECT_EQ(next(*id), CmEventType::connect_error);
    EXPECT_EQ(last_.status, failure.error);
    EXPECT_EQ(fake_.pending_device_events(), 0u);
    EXPECT_FALSE(is_dead(lane));
  }
  EXPECT_EQ(nothing(*id_), EAGAIN);
}

TEST_F(DeviceEventsTest, TheEndIsToldOnce) {
  Lane lane = establish();
  fake_.report(IBV_EVENT_QP_FATAL, lane.qp.qp.get());
  fake_.report(IBV_EVENT_QP_FATAL, lane.qp.qp.get());
  watches_.serve();
  fake_.report(*raw_, RDMA_CM_EVENT_DISCONNECTED);
  EXPECT_EQ(next(*id_), CmEventType::connect_error);
  EXPECT_EQ(nothing(*id_), EAGAIN);
  fake_.report(IBV_EVENT_QP_FATAL, lane.qp.qp.get());
  watches_.serve();
  EXPECT_EQ(nothing(*id_), EAGAIN);
}

TEST_F(DeviceEventsTest, WhatAPeerThatLeftCausesIsNoFailure) {
  Lane lane = establish();
  fake_.report(*raw_, RDMA_CM_EVENT_DISCONNECTED);
  EXPECT_EQ(next(*id_), CmEventType::disconnected);
  fake_.report(IBV_EVENT_QP_FATAL, lane.qp.qp.get());
  watches_.serve();
  EXPECT_EQ(nothing(*id_), EAGAIN);
}

TEST_F(DeviceEventsTest, ACompletionQueueThatFailedEndsTheConnectionsThatUseIt) {
  Lane lane = establish();
  auto id = *device_->create_id(verbs::PortSpace::tcp);
  Lane other = make_lane(*id);
  fake_.report(IBV_EVENT_CQ_ERR, other.cq.get());
  watches_.serve();
  EXPECT_EQ(next(*id), CmEventType::connect_error);
  EXPECT_EQ(last_.status, EIO);
  EXPECT_TRUE(is_dead(other));
  EXPECT_FALSE(is_dead(lane));
}

TEST_F(DeviceEventsTest, ADeviceThatFailsEndsEveryConnection) {
  Lane lane = establish();
  auto id = *device_->create_id(verbs::PortSpace::tcp);
  Lane other = make_lane(*id);
  fake_.report(IBV_EVENT_DEVICE_FATAL);
  watches_.serve();
  for (verbs::ConnectionId* each : {id_.get(), id.get()}) {
    EXPECT_EQ(next(*each), CmEventType::connect_error);
    EXPECT_EQ(last_.status, ENETDOWN);
  }
  EXPECT_TRUE(is_dead(lane) && is_dead(other));
}

TEST_F(DeviceEventsTest, ADeviceThatIsGoneEndsEveryConnectionAndIsWatchedNoMore) {
  Lane lane = establish();
  EXPECT_EQ(watches_.count(), 1u);
  fake_.report(IBV_EVENT_PORT_ERR);
  fake_.remove_devices();
  watches_.serve();
  EXPECT_EQ(next(*id_), CmEventType::connect_error);
  EXPECT_EQ(last_.status, ENETDOWN);
  EXPECT_EQ(watches_.count(), 0u) << "its descriptor stays readable for ever";
  // Its objects can only be forgotten.
  lane.qp.receive_mr.reset();
  EXPECT_EQ(device_->destroy_qp(lane.qp.qp.release()), 0);
}

TEST_F(DeviceEventsTest, ADeviceThatComesBackIsOpenedAnew) {
  RdmaDevice* const before = *devices_->device_of(*context_of_library());
  EXPECT_EQ(*devices_->device_of(*context_of_library()), before);
  fake_.report(IBV_EVENT_DEVICE_FATAL);
  watches_.serve();
  RdmaDevice* const after = *devices_->device_of(*context_of_library());
  EXPECT_NE(&after->context(), &before->context());
  EXPECT_EQ(*devices_->device_of(*context_of_library()), after);
  // The old one is there for those who have it.
  EXPECT_STREQ(before->name(), after->name());
}

TEST_F(DeviceEventsTest, AForkedChildOpensTheDeviceForItself) {
  RdmaDevice* const before = *devices_->device_of(*context_of_library());
  const pid_t child = ::fork();
  if (child == 0) {
    RdmaDevice* const own = *devices_->device_of(*context_of_library());
    ::_exit(&own->context() != &before->context() && own->is_usable() && !before->is_usable() ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(DeviceEventsTest, APeerThatSendsIsAPeerThatIsConnected) {
  auto request = listen_and_get_request();
  Lane lane = make_lane(*request);
  ASSERT_TRUE(request->accept({}));
  fake_.report(IBV_EVENT_COMM_EST, lane.qp.qp.get());
  watches_.serve();
  EXPECT_EQ(fake_.notified_events, 1);
  EXPECT_EQ(fake_.ids().back()->count("notify"), 1);
}

TEST_F(DeviceEventsTest, OtherReportsEndNothing) {
  Lane lane = establish();
  for (const auto type : {IBV_EVENT_PORT_ERR, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_GID_CHANGE, IBV_EVENT_SM_CHANGE}) {
    fake_.report(type);
  }
  for (const auto type : {IBV_EVENT_QP_LAST_WQE_REACHED, IBV_EVENT_SQ_DRAINED, IBV_EVENT_PATH_MIG}) {
    fake_.report(type, lane.qp.qp.get());
  }
  watches_.serve();
  EXPECT_EQ(fake_.pending_device_events(), 0u);
  EXPECT_EQ(nothing(*id_), EAGAIN);
  EXPECT_FALSE(is_dead(lane));
}

TEST_F(DeviceEventsTest, NobodyHearsOfAQueuePairThatIsGone) {
  ibv_qp handmade{};
  Lane lane = establish();
  lane.qp = {};
  auto id = *device_->create_id(verbs::PortSpace::tcp);
  Lane left = make_lane(*id);
  id.reset();
  fake_.report(IBV_EVENT_QP_FATAL, &handmade);
  fake_.report(IBV_EVENT_DEVICE_FATAL);
  watches_.serve();
  EXPECT_EQ(nothing(*id_), EAGAIN);
  EXPECT_FALSE(is_dead(left));
}

TEST_F(DeviceEventsTest, TheWatchEndsWithTheDevicesUse) {
  id_.reset();
  device_.reset();
  EXPECT_EQ(watches_.count(), 0u);
}

/// Owners come and go while a device reports the end of all of them, again and again.
TEST(AsyncEvents, NobodyIsCalledAfterLeaving) {
  FakeRdma fake;
  ibv_device& device = fake.add_device("rxe0", "10.7.0.1");
  struct Owner final : QueuePairOwner {
    void queue_pair_failed(ibv_qp&, int) override { EXPECT_TRUE(there.load()); }
    void peer_has_sent() override { EXPECT_TRUE(there.load()); }
    std::atomic<bool> there{true};
  };
  {
    auto context = *OpenContext::open(FakeRdma::calls(), device, {});
    AsyncEvents& events = context->events();
    ibv_qp qp{};
    std::atomic<bool> done{false};
    std::thread reader([&] {
      while (!done.load()) EXPECT_TRUE(events.take_all());
    });
    for (int i = 0; i < 2000; ++i) {
      Owner owner;
      events.enter(qp, owner);
      fake.report(i % 2 == 0 ? IBV_EVENT_QP_FATAL : IBV_EVENT_COMM_EST, &qp);
      events.leave(&qp, &owner);
      owner.there.store(false);
    }
    done.store(true);
    reader.join();
    EXPECT_TRUE(events.take_all());
  }
}

}  // namespace
}  // namespace ringsock::rdma
