// The parts of an id of RDMA CM, each alone.
#include "core/device/rdma/id_options.h"
#include "core/device/rdma/id_queue_pair.h"
#include "tests/unit/device_rdma/rdma_id_fixture.h"

namespace ringsock::rdma {
namespace {

using IdParts = RdmaIdTest;

TEST_F(IdParts, OptionsAreSetOnceAndAsWanted) {
  IdOptions options(FakeRdma::calls(), &raw_->id);
  options.v6_only(true);
  options.set_once();
  EXPECT_FALSE(raw_->options.contains(RDMA_OPTION_ID_REUSEADDR));
  EXPECT_EQ(raw_->options.at(RDMA_OPTION_ID_AFONLY).front(), std::byte{1});
  EXPECT_TRUE(raw_->options.contains(RDMA_OPTION_ID_ACK_TIMEOUT));

  options.reuse_address(true);
  options.set_once();
  EXPECT_FALSE(raw_->options.contains(RDMA_OPTION_ID_REUSEADDR)) << "the id may be bound by now";
}

/// Counts what the device reports.
class Reports final : public QueuePairOwner {
 public:
  void queue_pair_failed(ibv_qp& /*qp*/, int /*error*/) override { ++failures; }
  void peer_has_sent() override {}
  int failures = 0;
};

/// A queue pair of the fake device that no id uses yet.
class IdQueuePairTest : public RdmaIdTest {
 protected:
  IdQueuePairTest() : pd_(*device_->alloc_pd()), cq_(*device_->create_cq(16, nullptr, nullptr, 0)) {
    ibv_qp_init_attr attr{};
    attr.qp_type = IBV_QPT_RC;
    attr.send_cq = attr.recv_cq = cq_.get();
    qp_ = *device_->create_qp(*pd_, attr);
  }
  [[nodiscard]] std::vector<ibv_qp_state> states() { return fake_.queue_pair(qp_.get()).states(); }
  void fail() {
    fake_.report(IBV_EVENT_QP_FATAL, qp_.get());
    watches_.serve();
  }

  verbs::Pd pd_;
  verbs::Cq cq_;
  verbs::Qp qp_;
  Reports reports_;
  IdQueuePair part_{FakeRdma::calls(), &raw_->id};
};

using States = std::vector<ibv_qp_state>;

TEST_F(IdQueuePairTest, GoesThroughItsStates) {
  ASSERT_TRUE(part_.use(*qp_, *device_, reports_));
  ASSERT_TRUE(part_.to_ready(nullptr));
  part_.to_error();
  EXPECT_EQ(states(), (States{IBV_QPS_INIT, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_ERR}));
}

TEST_F(IdQueuePairTest, OneThatCannotBeMovedIsNotUsed) {
  fake_.failing.insert("init_qp_attr");
  EXPECT_FALSE(part_.use(*qp_, *device_, reports_));
  EXPECT_EQ(part_.get(), nullptr);
  part_.to_error();
  EXPECT_EQ(states(), States{});
}

TEST_F(IdQueuePairTest, FailuresAreReportedUntilItIsLeft) {
  ASSERT_TRUE(part_.use(*qp_, *device_, reports_));
  fail();
  EXPECT_EQ(reports_.failures, 1);
  part_.leave();
  fail();
  EXPECT_EQ(reports_.failures, 1);
}

}  // namespace
}  // namespace ringsock::rdma
