// Every operation of an RC queue pair, told from both ends.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "tests/unit/device_shm/rc_pair.h"

namespace ringsock::soft::testing {
namespace {

constexpr int kRemoteAll =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

std::string text_at(const End& end, std::size_t offset, std::size_t bytes) {
  return {reinterpret_cast<const char*>(end.arena.data()) + offset, bytes};
}

TEST(RcOperations, WriteWithImmediateLandsInTheArenaAndUsesAReceive) {
  RcPair pair;
  ASSERT_EQ(pair.bob.post_receive(77), 0);

  ASSERT_EQ(pair.alice.post_text(IBV_WR_RDMA_WRITE_WITH_IMM, "hello", &pair.bob, 100, 0xabcd), 0);

  const ibv_wc sent = pair.alice.next();
  EXPECT_EQ(sent.status, IBV_WC_SUCCESS);
  EXPECT_EQ(sent.opcode, IBV_WC_RDMA_WRITE);
  EXPECT_EQ(sent.wr_id, 1000U + 0xabcd);
  EXPECT_EQ(sent.qp_num, pair.alice.qp->qp_num);
  const ibv_wc received = pair.bob.next();
  EXPECT_EQ(received.status, IBV_WC_SUCCESS);
  EXPECT_EQ(received.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(received.wr_id, 77U);
  EXPECT_EQ(received.byte_len, 5U);
  EXPECT_EQ(received.imm_data, 0xabcdU);
  EXPECT_EQ(received.wc_flags, static_cast<unsigned>(IBV_WC_WITH_IMM));
  EXPECT_EQ(received.qp_num, pair.bob.qp->qp_num);
  EXPECT_EQ(received.src_qp, pair.alice.qp->qp_num);
  EXPECT_EQ(text_at(pair.bob, 100, 5), "hello");
}

TEST(RcOperations, PlainWriteTellsThePeerNothing) {
  RcPair pair;
  pair.bob.post_receives(1);
  ASSERT_EQ(pair.alice.post_text(IBV_WR_RDMA_WRITE, "quiet", &pair.bob, 0), 0);
  EXPECT_EQ(pair.alice.next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(text_at(pair.bob, 0, 5), "quiet");
  EXPECT_TRUE(End::poll_once(*pair.bob.cq).empty());
}

TEST(RcOperations, UnsignalledSendsCompleteSilently) {
  RcPair pair;
  ASSERT_EQ(pair.alice.post_text(IBV_WR_RDMA_WRITE, "x", &pair.bob, 0, 0, 0), 0);
  EXPECT_TRUE(End::poll_once(*pair.alice.cq).empty());
}

TEST(RcOperations, SignalAllMakesEverySendComplete) {
  RcPair pair({.signal_all = true});
  ASSERT_EQ(pair.alice.post_text(IBV_WR_RDMA_WRITE, "x", &pair.bob, 0, 0, 0), 0);
  EXPECT_EQ(pair.alice.next().opcode, IBV_WC_RDMA_WRITE);
}

TEST(RcOperations, WriteGathersRegisteredMemory) {
  RcPair pair;
  std::string first = "scatter ", second = "and gather";
  auto mr1 = pair.alice.register_memory(first.data(), first.size(), 0);
  auto mr2 = pair.alice.register_memory(second.data(), second.size(), 0);
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = reinterpret_cast<std::uint64_t>(pair.bob.arena.data());
  wr.wr.rdma.rkey = pair.bob.arena_mr->rkey;
  ASSERT_EQ(pair.alice.post(wr, {sge_of(first.data(), first.size(), mr1->lkey), sge_of(nullptr, 0, 0),
                                 sge_of(second.data(), second.size(), mr2->lkey)}),
            0);
  const ibv_wc wc = pair.alice.next();
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(text_at(pair.bob, 0, 18), "scatter and gather");
}

TEST(RcOperations, SendScattersIntoTheReceive) {
  RcPair pair;
  char first[3], second[16] = {};
  auto mr1 = pair.bob.register_memory(first, sizeof first, IBV_ACCESS_LOCAL_WRITE);
  auto mr2 = pair.bob.register_memory(second, sizeof second, IBV_ACCESS_LOCAL_WRITE);
  ASSERT_EQ(
      pair.bob.post_receive(5, {sge_of(first, sizeof first, mr1->lkey), sge_of(second, sizeof second, mr2->lkey)}), 0);

  ASSERT_EQ(pair.alice.post_text(IBV_WR_SEND_WITH_IMM, "abcdefg", nullptr, 0, 9), 0);

  // The receive is large enough, so the send is complete before Bob looks.
  EXPECT_EQ(pair.alice.next().opcode, IBV_WC_SEND);
  const ibv_wc wc = pair.bob.next();
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_RECV);
  EXPECT_EQ(wc.byte_len, 7U);
  EXPECT_EQ(wc.imm_data, 9U);
  EXPECT_EQ(std::string(first, 3), "abc");
  EXPECT_EQ(std::string(second, 4), "defg");
}

TEST(RcOperations, EmptyMessagesPassWithoutMemory) {
  RcPair pair;
  pair.bob.post_receives(2);
  ibv_send_wr wr{};
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.opcode = IBV_WR_SEND;
  ASSERT_EQ(pair.alice.post(wr, {}), 0);
  // Address and key of a write of nothing are never looked at.
  wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  wr.wr.rdma.remote_addr = 0xdeadbeef;
  wr.wr.rdma.rkey = 0xffffffff;
  ASSERT_EQ(pair.alice.post(wr, {}), 0);
  EXPECT_EQ(pair.alice.next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(pair.alice.next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(pair.bob.next().opcode, IBV_WC_RECV);
  EXPECT_EQ(pair.bob.next().opcode, IBV_WC_RECV_RDMA_WITH_IMM);
}

TEST(RcOperations, SendLargerThanThePayloadRingArrivesWhole) {
  RcPair pair;
  std::vector<char> out(1'000'003), in(out.size());
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<char>(i * 7);
  auto from = pair.alice.register_memory(out.data(), out.size(), 0);
  auto to = pair.bob.register_memory(in.data(), in.size(), IBV_ACCESS_LOCAL_WRITE);
  for (int round = 0; round < 3; ++round) {
    std::fill(in.begin(), in.end(), 0);
    ASSERT_EQ(pair.bob.post_receive(1, {sge_of(in.data(), in.size(), to->lkey)}), 0);
    ibv_send_wr wr{};
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED;
    ASSERT_EQ(pair.alice.post(wr, {sge_of(out.data(), out.size(), from->lkey)}), 0);
    std::vector<ibv_wc> got;
    while (got.empty()) {
      // Alice's progress is her polling.
      End::poll_once(*pair.alice.cq);
      got = End::poll_once(*pair.bob.cq);
    }
    EXPECT_EQ(got[0].byte_len, out.size());
    EXPECT_EQ(in, out);
  }
}

/// READ and atomics on memory of each kind that a peer can name.
class RcRemoteMemory : public ::testing::TestWithParam<const char*> {
 protected:
  RcRemoteMemory() : pair_({.arena_bytes = 4096}, {.arena_bytes = 4096}) {
    const bool arena = std::string(GetParam()) == "arena";
    words_ =
        arena ? std::span(reinterpret_cast<std::uint64_t*>(pair_.bob.arena.data()), 8) : std::span<std::uint64_t>(own_);
    // Registered again with all rights: the arena's own registration allows writes only.
    mr_ = pair_.bob.register_memory(words_.data(), words_.size_bytes(), kRemoteAll);
    if (arena) {
      // A region registered after the connection is published too.
      EXPECT_NE(mr_->rkey, pair_.bob.arena_mr->rkey);
    }
    local_mr_ = pair_.alice.register_memory(local_, sizeof local_, IBV_ACCESS_LOCAL_WRITE);
    if (std::string(GetParam()) == "assisted") fill_table();
  }
  /// Takes the row of every key, so that a later region has none.
  void fill_table() {
    while (fillers_.size() < 40) fillers_.push_back(pair_.bob.register_memory(own_.data(), 8, kRemoteAll));
    mr_ = pair_.bob.register_memory(words_.data(), words_.size_bytes(), kRemoteAll);
  }
  ibv_wc run(ibv_send_wr wr, std::size_t bytes) {
    wr.send_flags = IBV_SEND_SIGNALED;
    EXPECT_EQ(pair_.alice.post(wr, {sge_of(local_, bytes, local_mr_->lkey)}), 0);
    for (;;) {
      if (auto got = End::poll_once(*pair_.alice.cq); !got.empty()) return got[0];
      EXPECT_TRUE(End::poll_once(*pair_.bob.cq).empty());  // Bob's progress, without a completion
    }
  }
  ibv_send_wr rdma(ibv_wr_opcode opcode, std::size_t word) {
    ibv_send_wr wr{};
    wr.opcode = opcode;
    wr.wr.rdma.remote_addr = reinterpret_cast<std::uint64_t>(&words_[word]);
    wr.wr.rdma.rkey = mr_->rkey;
    return wr;
  }
  ibv_send_wr atomic(ibv_wr_opcode opcode, std::uint64_t compare_add, std::uint64_t swap) {
    ibv_send_wr wr{};
    wr.opcode = opcode;
    wr.wr.atomic.remote_addr = reinterpret_cast<std::uint64_t>(&words_[1]);
    wr.wr.atomic.rkey = mr_->rkey;
    wr.wr.atomic.compare_add = compare_add;
    wr.wr.atomic.swap = swap;
    return wr;
  }

  std::array<std::uint64_t, 8> own_{};
  std::uint64_t local_[4]{};
  RcPair pair_;
  std::span<std::uint64_t> words_;
  verbs::Mr mr_, local_mr_;
  std::vector<verbs::Mr> fillers_;
};

TEST_P(RcRemoteMemory, ReadFetches) {
  words_[2] = 42;
  words_[3] = 43;
  const ibv_wc wc = run(rdma(IBV_WR_RDMA_READ, 2), 16);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_RDMA_READ);
  EXPECT_EQ(wc.byte_len, 16U);
  EXPECT_EQ(local_[0], 42U);
  EXPECT_EQ(local_[1], 43U);
}

TEST_P(RcRemoteMemory, WriteStores) {
  local_[0] = 7;
  EXPECT_EQ(run(rdma(IBV_WR_RDMA_WRITE, 4), 8).status, IBV_WC_SUCCESS);
  EXPECT_EQ(words_[4], 7U);
}

TEST_P(RcRemoteMemory, FetchAndAddReturnsTheValueBefore) {
  words_[1] = 10;
  const ibv_wc wc = run(atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, 5, 0), 8);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_FETCH_ADD);
  EXPECT_EQ(local_[0], 10U);
  EXPECT_EQ(words_[1], 15U);
}

TEST_P(RcRemoteMemory, CompareAndSwapOnlySwapsWhenEqual) {
  words_[1] = 10;
  EXPECT_EQ(run(atomic(IBV_WR_ATOMIC_CMP_AND_SWP, 11, 99), 8).opcode, IBV_WC_COMP_SWAP);
  EXPECT_EQ(local_[0], 10U);
  EXPECT_EQ(words_[1], 10U);
  EXPECT_EQ(run(atomic(IBV_WR_ATOMIC_CMP_AND_SWP, 10, 99), 8).status, IBV_WC_SUCCESS);
  EXPECT_EQ(words_[1], 99U);
}

TEST_P(RcRemoteMemory, MisalignedAtomicIsAnInvalidRequest) {
  auto wr = atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 0);
  wr.wr.atomic.remote_addr += 4;
  EXPECT_EQ(run(wr, 8).status, IBV_WC_REM_INV_REQ_ERR);
}

TEST_P(RcRemoteMemory, BeyondTheRegionIsARemoteAccessError) {
  EXPECT_EQ(run(rdma(IBV_WR_RDMA_READ, 7), 16).status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(pair_.alice.state(), IBV_QPS_ERR);
}

TEST_P(RcRemoteMemory, ADeregisteredKeyIsARemoteAccessError) {
  auto wr = rdma(IBV_WR_RDMA_WRITE, 0);
  mr_.reset();
  EXPECT_EQ(run(wr, 8).status, IBV_WC_REM_ACCESS_ERR);
}

INSTANTIATE_TEST_SUITE_P(Memory, RcRemoteMemory, ::testing::Values("arena", "process", "assisted"),
                         [](const auto& info) { return std::string(info.param); });

/// Memory of the application at Bob's, which it does with what it likes.
class RcLostMemory : public ::testing::Test {
 protected:
  RcLostMemory() {
    while (fillers_.size() < 40) fillers_.push_back(pair_.bob.register_memory(&word_, 8, kRemoteAll));
    mr_ = pair_.bob.register_memory(pages_, kBytes, kRemoteAll);
    local_mr_ = pair_.alice.register_memory(local_.data(), local_.size(), IBV_ACCESS_LOCAL_WRITE);
  }
  ~RcLostMemory() override { ::munmap(pages_, kBytes); }
  ibv_wc_status run(ibv_wr_opcode opcode, std::size_t bytes) {
    ibv_send_wr wr{};
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
      wr.wr.atomic.remote_addr = reinterpret_cast<std::uint64_t>(pages_);
      wr.wr.atomic.rkey = mr_->rkey;
      wr.wr.atomic.compare_add = 1;
    } else {
      wr.wr.rdma.remote_addr = reinterpret_cast<std::uint64_t>(pages_);
      wr.wr.rdma.rkey = mr_->rkey;
    }
    EXPECT_EQ(pair_.alice.post(wr, {sge_of(local_.data(), bytes, local_mr_->lkey)}), 0);
    for (;;) {
      if (auto got = End::poll_once(*pair_.alice.cq); !got.empty()) return got[0].status;
      End::poll_once(*pair_.bob.cq);
    }
  }

  static constexpr std::size_t kBytes = 16384;
  std::uint64_t word_ = 0;
  std::vector<char> local_ = std::vector<char>(kBytes, 'w');
  void* pages_ = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  RcPair pair_;
  std::vector<verbs::Mr> fillers_;
  verbs::Mr mr_, local_mr_;
};

TEST_F(RcLostMemory, AnAssistedWriteIntoUnmappedMemoryIsRefused) {
  ::munmap(pages_, kBytes);
  EXPECT_EQ(run(IBV_WR_RDMA_WRITE, kBytes), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(pair_.bob.state(), IBV_QPS_ERR);
}

TEST_F(RcLostMemory, AnAssistedWriteIntoReadOnlyMemoryIsRefused) {
  ::mprotect(pages_, kBytes, PROT_READ);
  EXPECT_EQ(run(IBV_WR_RDMA_WRITE, 8), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(*static_cast<char*>(pages_), 0);
}

TEST_F(RcLostMemory, AnAssistedWriteBeforeAndAfterAHoleIsRefused) {
  ::mprotect(static_cast<char*>(pages_) + kBytes / 2, 4096, PROT_NONE);
  EXPECT_EQ(run(IBV_WR_RDMA_WRITE, kBytes / 2), IBV_WC_SUCCESS);
  EXPECT_EQ(run(IBV_WR_RDMA_WRITE, kBytes), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(RcLostMemory, AnAssistedReadOfUnmappedMemoryIsRefused) {
  ::munmap(pages_, kBytes);
  EXPECT_EQ(run(IBV_WR_RDMA_READ, kBytes), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(RcLostMemory, AnAtomicOperationOnUnmappedMemoryIsRefused) {
  EXPECT_EQ(run(IBV_WR_ATOMIC_FETCH_AND_ADD, 8), IBV_WC_SUCCESS);
  EXPECT_EQ(*static_cast<std::uint64_t*>(pages_), 1U);
  ::munmap(pages_, kBytes);
  EXPECT_EQ(run(IBV_WR_ATOMIC_FETCH_AND_ADD, 8), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(RcLostMemory, AnAtomicOperationOnReadOnlyMemoryIsRefused) {
  ::mprotect(pages_, kBytes, PROT_READ);
  EXPECT_EQ(run(IBV_WR_ATOMIC_FETCH_AND_ADD, 8), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(RcLostMemory, WhatIsNotThereIsNotRegisteredForAPeer) {
  const auto error_of = [&](void* address, std::size_t bytes) {
    const auto mr = pair_.bob.device->reg_mr(*pair_.bob.pd, address, bytes, kRemoteAll);
    return mr ? 0 : mr.error().code;
  };
  EXPECT_EQ(error_of(pages_, kBytes), 0);
  EXPECT_EQ(error_of(reinterpret_cast<void*>(0xffff800000000000), 100), EFAULT);
  EXPECT_EQ(error_of(reinterpret_cast<void*>(0x1000), 100), EFAULT);
  ::mprotect(static_cast<char*>(pages_) + 4096, 4096, PROT_READ);
  EXPECT_EQ(error_of(pages_, kBytes), EFAULT);
  EXPECT_EQ(error_of(pages_, 4096), 0);
  constexpr std::size_t kLarge = 1 << 20;
  auto* large = static_cast<char*>(::mmap(nullptr, kLarge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  EXPECT_EQ(error_of(large + 10, kLarge - 10), 0);
  ::mprotect(large + kLarge / 2, 4096, PROT_READ);
  EXPECT_EQ(error_of(large, kLarge), EFAULT);
  ::munmap(large + kLarge / 2, 4096);
  EXPECT_EQ(error_of(large, kLarge), EFAULT);
  ::munmap(large, kLarge);
}

/// Where a filter forbids the calls that look into processes.
TEST_F(RcLostMemory, WithoutProcessVmAssistedRequestsGoOnAndAreRefusedAlike) {
  const auto play = [&] {
    const sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog program{std::size(filter), const_cast<sock_filter*>(filter)};
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
      return 1;
    for (std::size_t i = 0; i < kBytes; ++i) local_[i] = static_cast<char>(i * 7 + i / 256);
    if (run(IBV_WR_RDMA_WRITE, kBytes) != IBV_WC_SUCCESS || std::memcmp(pages_, local_.data(), kBytes) != 0) return 2;
    local_.assign(kBytes, 0);
    if (run(IBV_WR_RDMA_READ, kBytes) != IBV_WC_SUCCESS || std::memcmp(pages_, local_.data(), kBytes) != 0) return 3;
    ::mprotect(pages_, kBytes, PROT_READ);
    return run(IBV_WR_RDMA_WRITE, kBytes) == IBV_WC_REM_ACCESS_ERR ? 0 : 4;
  };
  EXPECT_EXIT(::_exit(play()), ::testing::ExitedWithCode(0), "");
}

TEST(RcOperations, AssistedWriteLargerThanThePayloadRingArrivesWhole) {
  RcPair pair;
  std::vector<char> out(700'001), in(out.size());
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<char>(i * 11);
  auto from = pair.alice.register_memory(out.data(), out.size(), IBV_ACCESS_LOCAL_WRITE);
  std::vector<verbs::Mr> fillers;
  while (fillers.size() < 40) fillers.push_back(pair.bob.register_memory(in.data(), 8, kRemoteAll));
  auto to = pair.bob.register_memory(in.data(), in.size(), kRemoteAll);
  pair.bob.post_receives(1);
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.imm_data = 3;
  wr.wr.rdma.remote_addr = reinterpret_cast<std::uint64_t>(in.data());
  wr.wr.rdma.rkey = to->rkey;
  ASSERT_EQ(pair.alice.post(wr, {sge_of(out.data(), out.size(), from->lkey)}), 0);
  std::vector<ibv_wc> got;
  while (got.empty()) {
    End::poll_once(*pair.alice.cq);
    got = End::poll_once(*pair.bob.cq);
  }
  EXPECT_EQ(got[0].byte_len, out.size());
  EXPECT_EQ(got[0].imm_data, 3U);
  EXPECT_EQ(in, out);

  std::fill(out.begin(), out.end(), 0);
  wr.opcode = IBV_WR_RDMA_READ;
  ASSERT_EQ(pair.alice.post(wr, {sge_of(out.data(), out.size(), from->lkey)}), 0);
  for (int reads = 0; reads == 0;) {
    for (const ibv_wc& wc : End::poll_once(*pair.alice.cq)) reads += wc.opcode == IBV_WC_RDMA_READ;
    End::poll_once(*pair.bob.cq);
  }
  EXPECT_EQ(in, out);
}

TEST(RcOperations, ManyMessagesKeepTheirOrderAcrossRingWraps) {
  RcPair pair({.send_wr = 16}, {.receive_wr = 16});
  std::uint32_t sent = 0, received = 0;
  for (int i = 0; i < 16; ++i) ASSERT_EQ(pair.bob.post_receive(0), 0);
  while (received < 400'000) {
    for (int burst = 0; burst < 7; ++burst) {
      if (pair.alice.post_text(IBV_WR_RDMA_WRITE_WITH_IMM, "x", &pair.bob, 0, sent, 0) != 0) break;
      ++sent;
    }
    for (const ibv_wc& wc : End::poll_once(*pair.bob.cq)) {
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
      ASSERT_EQ(wc.imm_data, received++);
      ASSERT_EQ(pair.bob.post_receive(0), 0);
    }
    End::poll_once(*pair.alice.cq);
  }
}

}  // namespace
}  // namespace ringsock::soft::testing
