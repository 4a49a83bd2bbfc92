// The connection manager of a real device, with a test in the place of kernel and peer.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "tests/unit/device_rdma/rdma_id_fixture.h"

namespace ringsock::rdma {
namespace {

// -- waiting

TEST_F(RdmaIdTest, NeverBlocksAndIsReadableWhenThereIsAnEvent) {
  EXPECT_EQ(nothing(*id_), EAGAIN);
  EXPECT_FALSE(is_readable(id_->event_fd()));
  fake_.report(*raw_, RDMA_CM_EVENT_ROUTE_RESOLVED);
  EXPECT_TRUE(is_readable(id_->event_fd()));
  EXPECT_EQ(next(*id_), CmEventType::route_resolved);
  EXPECT_EQ(nothing(*id_), EAGAIN);
}

TEST_F(RdmaIdTest, KeepsItsDescriptorsOutOfTheApplicationsWay) {
  const int lowest = ::dup(0);
  ::close(lowest);
  EXPECT_GT(id_->event_fd(), lowest + 100);
  EXPECT_GT(device_->context().async_fd, lowest + 100);
  EXPECT_NE(::fcntl(device_->context().async_fd, F_GETFL) & O_NONBLOCK, 0);
  EXPECT_EQ(device_->get_async_event().error().code, EAGAIN);
}

TEST_F(RdmaIdTest, EventsThatMeanNothingAreTakenSilently) {
  for (int i = 0; i < 3; ++i) fake_.report(*raw_, RDMA_CM_EVENT_TIMEWAIT_EXIT);
  fake_.report(*raw_, RDMA_CM_EVENT_ADDR_CHANGE);
  EXPECT_EQ(nothing(*id_), EAGAIN);
  EXPECT_EQ(fake_.waiting_events(), 0u);
}

// -- the active side

TEST_F(RdmaIdTest, ConnectsWithAQueuePairOfItsOwn) {
  Lane lane = connect();
  EXPECT_EQ(raw_->parameters.qp_num, lane.qp.qp->qp_num);
  EXPECT_EQ(raw_->parameters.retry_count, 7);
  EXPECT_EQ(raw_->parameters.rnr_retry_count, 7);
  EXPECT_EQ(raw_->parameters.initiator_depth, 0);
  EXPECT_EQ(raw_->private_data, bytes(40));

  // The answer comes; nobody but us finishes the handshake.
  fake_.report(*raw_, RDMA_CM_EVENT_CONNECT_RESPONSE, 0, bytes(196, 1));
  EXPECT_EQ(next(*id_), CmEventType::established);
  EXPECT_EQ(last_.private_data_bytes, 196u);
  EXPECT_EQ(last_.data()[195], std::byte{196});
  EXPECT_EQ(raw_->count("establish"), 1);

  const auto& qp = fake_.queue_pair(lane.qp.qp.get());
  // INIT once more, with what is known only now: without it the peer may not write.
  EXPECT_EQ(qp.states(), (std::vector{IBV_QPS_INIT, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}));
  EXPECT_EQ(qp.changes[2].attr.min_rnr_timer, 12);
  EXPECT_NE(qp.changes[2].mask & IBV_QP_MIN_RNR_TIMER, 0);
  EXPECT_EQ(qp.changes[3].attr.retry_cnt, 6) << "Soft-RoCE repeats for ever with 7";
  EXPECT_EQ(raw_->options.at(RDMA_OPTION_ID_ACK_TIMEOUT), std::vector{std::byte{16}});
}

TEST_F(RdmaIdTest, AQueuePairThatCannotGoOnIsAFailedConnect) {
  Lane lane = connect();
  fake_.failing = {"modify_qp"};
  fake_.failure = ENOMEM;
  fake_.report(*raw_, RDMA_CM_EVENT_CONNECT_RESPONSE);
  EXPECT_EQ(next(*id_), CmEventType::connect_error);
  EXPECT_EQ(last_.status, ENOMEM);
  EXPECT_EQ(raw_->count("establish"), 0);
  EXPECT_EQ(raw_->count("disconnect"), 1);
}

TEST_F(RdmaIdTest, AnAnswerThatWasNotAskedForIsIgnored) {
  fake_.report(*raw_, RDMA_CM_EVENT_CONNECT_RESPONSE);
  EXPECT_EQ(nothing(*id_), EAGAIN);
  EXPECT_EQ(raw_->count("establish"), 0);
}

TEST_F(RdmaIdTest, FailuresAreErrnoValues) {
  const struct {
    rdma_cm_event_type raw;
    int raw_status;
    CmEventType type;
    int status;
  } kFailures[] = {
      {RDMA_CM_EVENT_ADDR_ERROR, -ENODEV, CmEventType::addr_error, ENODEV},
      {RDMA_CM_EVENT_ROUTE_ERROR, -ETIMEDOUT, CmEventType::route_error, ETIMEDOUT},
      {RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT, CmEventType::unreachable, ETIMEDOUT},
      {RDMA_CM_EVENT_CONNECT_ERROR, 12345678, CmEventType::connect_error, ECONNABORTED},
      {RDMA_CM_EVENT_REJECTED, 28, CmEventType::rejected, ECONNREFUSED},
  };
  for (const auto& failure : kFailures) {
    fake_.report(*raw_, failure.raw, failure.raw_status);
    EXPECT_EQ(next(*id_), failure.type);
    EXPECT_EQ(last_.status, failure.status);
  }
}

TEST_F(RdmaIdTest, AnAddressWithoutADeviceIsAnAddressError) {
  ASSERT_TRUE(id_->resolve_addr(kThere, std::chrono::seconds(1)));
  fake_.report(*raw_, RDMA_CM_EVENT_ADDR_RESOLVED);
  EXPECT_EQ(next(*id_), CmEventType::addr_error);
  EXPECT_EQ(last_.status, ENODEV);
}

TEST_F(RdmaIdTest, PrivateDataIsNeverLongerThanItsRoom) {
  fake_.report(*raw_, RDMA_CM_EVENT_REJECTED, 28, bytes(255));
  EXPECT_EQ(next(*id_), CmEventType::rejected);
  EXPECT_EQ(last_.private_data_bytes, verbs::kMaxReplyPrivateData);
  const auto too_long = bytes(verbs::kMaxRequestPrivateData + 1);
  Lane lane = resolve();
  ConnectionParameters parameters;
  parameters.private_data = too_long;
  EXPECT_EQ(id_->connect(parameters).error().code, EINVAL);
}

// -- the passive side

TEST_F(RdmaIdTest, EachClientHasAChannelOfItsOwn) {
  auto request = listen_and_get_request();
  ASSERT_NE(request, nullptr);
  EXPECT_EQ(last_.private_data_bytes, 56u);
  EXPECT_EQ(last_.data()[55], std::byte{55});
  EXPECT_NE(request->event_fd(), id_->event_fd());
  Lane lane = make_lane(*request);
  ASSERT_TRUE(request->accept({}));

  // It is established later, and the listener hears nothing of that.
  EXPECT_EQ(nothing(*request), EAGAIN);
  fake_.report(*fake_.ids().back(), RDMA_CM_EVENT_ESTABLISHED);
  EXPECT_EQ(nothing(*id_), EAGAIN);
  EXPECT_EQ(next(*request), CmEventType::established);
  EXPECT_EQ(fake_.queue_pair(lane.qp.qp.get()).states(),
            (std::vector{IBV_QPS_INIT, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}));
}

TEST_F(RdmaIdTest, AcceptsNoMoreThanTheDeviceHas) {
  rdma_conn_param wanted{};
  wanted.responder_resources = 255;
  wanted.initiator_depth = 200;
  wanted.rnr_retry_count = 7;
  auto request = listen_and_get_request(wanted);
  const ConnectionParameters parameters = last_.parameters;
  Lane lane = make_lane(*request);
  ASSERT_TRUE(request->accept(parameters));
  const FakeRdma::Id& raw = *fake_.ids().back();
  EXPECT_EQ(raw.parameters.responder_resources, 8);
  EXPECT_EQ(raw.parameters.initiator_depth, 4);
  EXPECT_EQ(raw.parameters.rnr_retry_count, 7);
  const auto& changes = fake_.queue_pair(lane.qp.qp.get()).changes;
  EXPECT_EQ(changes[2].attr.max_dest_rd_atomic, 8);
  EXPECT_EQ(changes[3].attr.max_rd_atomic, 4);
}

TEST_F(RdmaIdTest, ADroppedRequestIsDestroyedWhichRejectsIt) {
  auto request = listen_and_get_request();
  EXPECT_EQ(fake_.ids().size(), 2u);
  request.reset();
  EXPECT_EQ(fake_.ids().size(), 1u);
}

TEST_F(RdmaIdTest, WithoutADescriptorTheClientWaits) {
  ASSERT_TRUE(id_->bind(kHere));
  ASSERT_TRUE(id_->listen(5));
  fake_.request(*raw_, bytes(56));
  fake_.channel_error = EMFILE;
  EXPECT_EQ(nothing(*id_), EMFILE);
  EXPECT_TRUE(is_readable(id_->event_fd()));
  fake_.channel_error = 0;
  EXPECT_EQ(next(*id_), CmEventType::connect_request);
}

TEST_F(RdmaIdTest, ARequestThatCannotBeTakenOverDoesNotStopTheNext) {
  ASSERT_TRUE(id_->bind(kHere));
  ASSERT_TRUE(id_->listen(5));
  fake_.request(*raw_, bytes(56));
  fake_.failing = {"migrate_id"};
  EXPECT_EQ(nothing(*id_), EAGAIN);
  EXPECT_EQ(fake_.ids().size(), 1u);
  fake_.failing.clear();
  fake_.request(*raw_, bytes(56));
  EXPECT_EQ(next(*id_), CmEventType::connect_request);
}

TEST_F(RdmaIdTest, OptionsOfTheAddressAreSetBeforeBinding) {
  id_->set_reuse_address(true);
  id_->set_v6_only(true);
  ASSERT_TRUE(id_->bind(kHere));
  EXPECT_EQ(raw_->options.at(RDMA_OPTION_ID_REUSEADDR).front(), std::byte{1});
  EXPECT_EQ(raw_->options.at(RDMA_OPTION_ID_AFONLY).front(), std::byte{1});
  EXPECT_EQ(raw_->calls.back(), "bind_addr");
  EXPECT_EQ(id_->local_address(), kHere);
}

TEST_F(RdmaIdTest, TheTypeOfServiceIsOneByte) {
  id_->set_type_of_service(0x10);
  ASSERT_TRUE(id_->bind(kHere));
  const auto& tos = raw_->options.at(RDMA_OPTION_ID_TOS);
  ASSERT_EQ(tos.size(), 1u);
  EXPECT_EQ(tos.front(), std::byte{0x10});
}

TEST_F(RdmaIdTest, NoTypeOfServiceIsLeftToTheKernel) {
  ASSERT_TRUE(id_->bind(kHere));
  EXPECT_EQ(raw_->options.count(RDMA_OPTION_ID_TOS), 0u);
}

TEST_F(RdmaIdTest, AnOptionThatTheKernelDoesNotKnowIsDoneWithout) {
  fake_.failing = {"set_option"};
  fake_.failure = ENOSYS;
  EXPECT_TRUE(id_->bind(kHere));
}

// -- the end

TEST_F(RdmaIdTest, APeerThatLeavesFlushesTheQueuePairAndIsAnswered) {
  Lane lane = connect();
  fake_.report(*raw_, RDMA_CM_EVENT_CONNECT_RESPONSE);
  ASSERT_EQ(next(*id_), CmEventType::established);
  fake_.report(*raw_, RDMA_CM_EVENT_DISCONNECTED);
  fake_.report(*raw_, RDMA_CM_EVENT_DISCONNECTED);
  EXPECT_EQ(next(*id_), CmEventType::disconnected);
  EXPECT_EQ(fake_.queue_pair(lane.qp.qp.get()).states().back(), IBV_QPS_ERR);
  EXPECT_EQ(raw_->count("disconnect"), 1);
  EXPECT_EQ(nothing(*id_), EAGAIN) << "told twice";
}

TEST_F(RdmaIdTest, ADeviceThatIsRemovedEndsTheConnection) {
  Lane lane = connect();
  fake_.report(*raw_, RDMA_CM_EVENT_CONNECT_RESPONSE);
  ASSERT_EQ(next(*id_), CmEventType::established);
  fake_.remove_devices();
  fake_.report(*raw_, RDMA_CM_EVENT_DEVICE_REMOVAL);
  EXPECT_EQ(next(*id_), CmEventType::device_removal);
  EXPECT_EQ(last_.status, ENETDOWN);
  EXPECT_EQ(fake_.queue_pair(lane.qp.qp.get()).states().back(), IBV_QPS_ERR);
  // What is left of it goes without complaint.
  ibv_qp* const qp = lane.qp.qp.release();
  lane.qp.receive_mr.reset();
  EXPECT_EQ(device_->destroy_qp(qp), 0);
}

TEST_F(RdmaIdTest, AForkedChildLeavesEverythingToItsParent) {
  Lane lane = connect();
  const pid_t child = ::fork();
  if (child == 0) {
    lane.qp = {};
    lane.cq.reset();
    lane.pd.reset();
    id_.reset();
    ::_exit(fake_.destroy_calls == 0 && fake_.live_queue_pairs() == 1 && fake_.ids().size() == 1 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// -- the queue pair

TEST_F(RdmaIdTest, AsksForLessInlineDataUntilItGetsSome) {
  fake_.max_inline = 60;
  Lane lane = make_lane(*id_, 256);
  EXPECT_EQ(lane.attr.cap.max_inline_data, 32u);
}

TEST_F(RdmaIdTest, WhatFailsForAnotherReasonFails) {
  auto pd = *device_->alloc_pd();
  ibv_qp_init_attr attr{};
  attr.cap.max_inline_data = 64;
  fake_.failing = {"create_qp"};
  for (const int error : {EINVAL, EMFILE}) {
    fake_.failure = error;
    EXPECT_EQ(id_->create_qp(*pd, attr, 0).error().code, error);
    EXPECT_EQ(attr.cap.max_inline_data, 64u);
  }
}

TEST_F(RdmaIdTest, MemoryThatCannotBeRegisteredLeavesNothing) {
  auto pd = *device_->alloc_pd();
  ibv_qp_init_attr attr{};
  fake_.failing = {"reg_mr"};
  fake_.failure = ENOMEM;
  EXPECT_EQ(id_->create_qp(*pd, attr, 4096).error().code, ENOMEM);
  EXPECT_EQ(fake_.live_queue_pairs(), 0u);
}

TEST_F(RdmaIdTest, ReceiveMemoryIsZeroAndRegistered) {
  Lane lane = make_lane(*id_);
  ASSERT_EQ(lane.qp.receive_memory.size(), 10000u);
  for (const std::byte byte : lane.qp.receive_memory) ASSERT_EQ(byte, std::byte{0});
  EXPECT_EQ(lane.qp.receive_mr->addr, lane.qp.receive_memory.data());
  EXPECT_EQ(lane.qp.receive_mr->length, 10000u);
}

// -- iWARP

TEST_F(RdmaIdTest, DevicesThatAreTheKernelsSoftwareNeedOurCpus) {
  EXPECT_FALSE(device_->traits().works_on_our_cpus);
  for (const std::uint32_t vendor : {0xffffffu, 0x626d74u}) {
    fake_.vendor_id = vendor;
    const auto again = std::make_shared<RdmaDevices>(FakeRdma::calls(), RdmaUse{.watch = watches_.watcher()});
    EXPECT_TRUE((*again->open_first())->traits().works_on_our_cpus);
  }
}

TEST_F(IwarpIdTest, TheKernelReadiesTheQueuePairAndMessagesTravelBySend) {
  EXPECT_FALSE(device_->traits().has_write_with_immediate);
  Lane lane = connect();
  EXPECT_EQ(raw_->parameters.initiator_depth, 1);
  fake_.report(*raw_, RDMA_CM_EVENT_ESTABLISHED, 0, bytes(40));
  EXPECT_EQ(next(*id_), CmEventType::established);
  EXPECT_EQ(last_.private_data_bytes, 40u);
  EXPECT_EQ(fake_.queue_pair(lane.qp.qp.get()).states(), std::vector{IBV_QPS_INIT});
  EXPECT_EQ(raw_->count("establish"), 0);
}

}  // namespace
}  // namespace ringsock::rdma
