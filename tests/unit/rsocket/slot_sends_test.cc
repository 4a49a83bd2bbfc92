// The sends of a lane on a real device, played by a test: what is under way, what waits, what fails.
#include "librsocket/datagram/slot_sends.h"

#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <deque>
#include <memory>
#include <string>

#include "tests/fakes/fake_device.h"
#include "tests/fakes/fake_queue_pair.h"

namespace ringsock::rs {
namespace {

/// A device whose address handles are counted.
class HandleDevice final : public fakes::FakeDevice {
 public:
  verbs::Ah make() {
    ++live;
    return verbs::Ah(*this, new ibv_ah{});
  }
  int destroy_ah(ibv_ah* handle) override {
    --live;
    delete handle;
    return 0;
  }
  int live = 0;
};

class SlotSendsTest : public testing::Test {
 protected:
  static constexpr std::size_t kSlots = 3, kSlotBytes = 256, kInlineBytes = 16;

  SlotSendsTest() {
    cq_context_.ops.poll_cq = [](ibv_cq* cq, int count, ibv_wc* out) {
      auto& done = static_cast<SlotSendsTest*>(cq->cq_context)->done_;
      int got = 0;
      for (; got < count && !done.empty(); ++got) {
        out[got] = done.front();
        done.pop_front();
      }
      return got;
    };
    cq_.context = &cq_context_;
    cq_.cq_context = this;
    sends_ = std::make_unique<SlotSends>(qp_.qp(), cq_, SlotSends::Memory{memory_, kSlotBytes, 9}, kInlineBytes);
  }
  Status send(const std::string& text, ibv_ah& handle) {
    IoCursor data(const_cast<char*>(text.data()), text.size());
    const std::array<std::byte, 4> header{std::byte{'h'}, std::byte{'e'}, std::byte{'a'}, std::byte{'d'}};
    return sends_->send(handle, 5, header, data, text.size());
  }
  void complete(std::size_t posted, ibv_wc_status status = IBV_WC_SUCCESS) {
    ibv_wc one{};
    one.wr_id = qp_.sent.at(posted).id;
    one.status = status;
    done_.push_back(one);
  }

  HandleDevice device_;
  fakes::FakeQueuePair qp_;
  ibv_context cq_context_{};
  ibv_cq cq_{};
  std::deque<ibv_wc> done_;
  std::array<std::byte, kSlots * kSlotBytes> memory_{};
  std::unique_ptr<SlotSends> sends_;
};

TEST_F(SlotSendsTest, CopiesHeaderAndDataAndDoesNotWait) {
  const verbs::Ah handle = device_.make();
  ASSERT_TRUE(send("a longer text than inline", *handle));
  ASSERT_TRUE(send("short", *handle));
  ASSERT_EQ(qp_.sent.size(), 2u);
  EXPECT_EQ(qp_.sent[0].payload, "heada longer text than inline");
  EXPECT_EQ(qp_.sent[0].flags & IBV_SEND_INLINE, 0u);
  EXPECT_EQ(qp_.sent[1].payload, "headshort");
  EXPECT_NE(qp_.sent[1].flags & IBV_SEND_INLINE, 0u);
  EXPECT_FALSE(sends_->is_idle());
}

TEST_F(SlotSendsTest, RefusesWhatHasNoSlotUntilOneIsFree) {
  const verbs::Ah handle = device_.make();
  for (std::size_t i = 0; i < kSlots; ++i) ASSERT_TRUE(send("x", *handle));
  EXPECT_FALSE(sends_->has_room());
  EXPECT_EQ(send("x", *handle).error().code, EAGAIN);
  EXPECT_EQ(qp_.sent.size(), kSlots);
  complete(1);
  EXPECT_TRUE(sends_->has_room());
  EXPECT_FALSE(sends_->has_room(2));
  EXPECT_TRUE(send("x", *handle));
  complete(0);
  complete(2);
  complete(3);
  sends_->reap();
  EXPECT_TRUE(sends_->is_idle());
}

TEST_F(SlotSendsTest, KeepsAHandleThatIsInUse) {
  verbs::Ah handle = device_.make();
  ASSERT_TRUE(send("x", *handle));
  sends_->retire(std::move(handle));
  EXPECT_EQ(device_.live, 1);
  complete(0);
  sends_->reap();
  EXPECT_EQ(device_.live, 0);
  sends_->retire(device_.make());  // nothing is under way
  EXPECT_EQ(device_.live, 0);
}

TEST_F(SlotSendsTest, KeepsNoMoreHandlesThanDatagramsAreUnderWay) {
  for (int peer = 0; peer < 10'000; ++peer) {
    verbs::Ah handle = device_.make();
    if (!sends_->has_room()) complete(qp_.sent.size() - kSlots);
    ASSERT_TRUE(send("x", *handle));
    sends_->retire(std::move(handle));
    ASSERT_LE(device_.live, static_cast<int>(kSlots));
  }
  sends_.reset();
}

TEST_F(SlotSendsTest, TellsThatTheQueuePairHasFailed) {
  const verbs::Ah handle = device_.make();
  ASSERT_TRUE(send("x", *handle));
  complete(0, IBV_WC_LOC_LEN_ERR);
  sends_->reap();
  EXPECT_TRUE(sends_->has_failed());
  EXPECT_EQ(send("x", *handle).error().code, EIO);
}

TEST_F(SlotSendsTest, TakesAFullQueueForNoFailure) {
  const verbs::Ah handle = device_.make();
  qp_.refuses = ENOMEM;
  EXPECT_EQ(send("x", *handle).error().code, EAGAIN);
  EXPECT_FALSE(sends_->has_failed());
  qp_.refuses = EINVAL;
  EXPECT_EQ(send("x", *handle).error().code, EIO);
  EXPECT_TRUE(sends_->has_failed());
}

}  // namespace
}  // namespace ringsock::rs
