// What a message costs on an RC queue pair of the embedded device, below everything else.
#include <benchmark/benchmark.h>
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <thread>

#include "tests/unit/device_shm/rc_pair.h"

namespace ringsock::soft::testing {
namespace {

constexpr std::uint32_t kDepth = 384;

/// Two spinning threads on one CPU would measure the scheduler.
void run_on_cpu(unsigned cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  ::pthread_setaffinity_np(::pthread_self(), sizeof set, &set);
}

EndOptions deep() {
  EndOptions options;
  options.send_wr = options.receive_wr = kDepth;
  return options;
}

/// A WRITE WITH IMMEDIATE of one inline buffer, posted again and again.
struct Writer {
  Writer(End& from, End& to, std::size_t bytes) : qp(from.qp.get()), data(bytes) {
    sge = sge_of(data.data(), bytes, 0);
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    wr.send_flags = IBV_SEND_INLINE;
    base = reinterpret_cast<std::uint64_t>(to.arena.data());
    wr.wr.rdma.rkey = to.arena_mr->rkey;
    wr.wr.rdma.remote_addr = base;
    slots = to.arena.size() / 4 / bytes;
  }
  int post() {
    ibv_send_wr* bad = nullptr;
    // Walks through the buffer as a stream does.
    if (++slot >= slots) slot = 0;
    wr.wr.rdma.remote_addr = base + slot * data.size();
    return ibv_post_send(qp, &wr, &bad);
  }
  ibv_qp* qp;
  std::vector<std::byte> data;
  ibv_sge sge{};
  ibv_send_wr wr{};
  std::uint64_t base = 0, slot = 0, slots = 1;
};

/// Polls up to 16, posts as many receives.
struct Reader {
  explicit Reader(End& end) : qp(end.qp.get()), cq(end.cq.get()) {
    for (std::size_t i = 0; i < std::size(receives); ++i) receives[i] = {};
  }
  int poll() {
    ibv_wc wc[16];
    const int got = ibv_poll_cq(cq, 16, wc);
    if (got > 0) repost(got);
    return got;
  }
  void repost(int count) {
    for (int i = 0; i < count; ++i) receives[i].next = i + 1 < count ? &receives[i + 1] : nullptr;
    ibv_recv_wr* bad = nullptr;
    ibv_post_recv(qp, receives, &bad);
  }
  ibv_qp* qp;
  ibv_cq* cq;
  ibv_recv_wr receives[16];
};

void BM_PostAndPollInOneThread(benchmark::State& state) {
  RcPair pair(deep(), deep());
  pair.bob.post_receives(kDepth);
  Writer writer(pair.alice, pair.bob, static_cast<std::size_t>(state.range(0)));
  Reader reader(pair.bob);
  for (auto _ : state) {
    writer.post();
    while (reader.poll() == 0) {
    }
  }
  state.SetItemsProcessed(state.iterations());
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_PostAndPollInOneThread)->Arg(64)->Arg(65536);

void BM_PostBatchThenPollBatch(benchmark::State& state) {
  RcPair pair(deep(), deep());
  pair.bob.post_receives(kDepth);
  Writer writer(pair.alice, pair.bob, 64);
  Reader reader(pair.bob);
  for (auto _ : state) {
    for (int i = 0; i < 16; ++i) writer.post();
    for (int got = 0; got < 16;) got += reader.poll();
  }
  state.SetItemsProcessed(state.iterations() * 16);
}
BENCHMARK(BM_PostBatchThenPollBatch);

void BM_EmptyPoll(benchmark::State& state) {
  RcPair pair(deep(), deep());
  ibv_wc wc;
  for (auto _ : state) benchmark::DoNotOptimize(ibv_poll_cq(pair.bob.cq.get(), 1, &wc));
}
BENCHMARK(BM_EmptyPoll);

/// One thread sends, another receives; the sender is held up only by credits.
void BM_OneWay(benchmark::State& state) {
  RcPair pair(deep(), deep());
  pair.bob.post_receives(kDepth);
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> received{0};
  run_on_cpu(0);
  std::thread receiver([&] {
    run_on_cpu(1);
    Reader reader(pair.bob);
    std::uint64_t total = 0;
    while (!stop.load(std::memory_order_relaxed)) {
      const int got = reader.poll();
      if (got > 0) received.store(total += static_cast<std::uint64_t>(got), std::memory_order_relaxed);
    }
  });
  Writer writer(pair.alice, pair.bob, static_cast<std::size_t>(state.range(0)));
  std::uint64_t sent = 0;
  for (auto _ : state) {
    // As a stream protocol does: no more than the peer has room for.
    while (sent - received.load(std::memory_order_relaxed) >= kDepth) cpu_relax();
    writer.post();
    ++sent;
  }
  while (received.load() != sent) cpu_relax();
  stop = true;
  receiver.join();
  state.SetItemsProcessed(state.iterations());
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_OneWay)->Arg(64)->Arg(65536)->UseRealTime();

void BM_PingPong(benchmark::State& state) {
  RcPair pair(deep(), deep());
  pair.alice.post_receives(kDepth);
  pair.bob.post_receives(kDepth);
  const auto bytes = static_cast<std::size_t>(state.range(0));
  std::atomic<bool> stop{false};
  run_on_cpu(0);
  std::thread echo([&] {
    run_on_cpu(1);
    Writer writer(pair.bob, pair.alice, bytes);
    Reader reader(pair.bob);
    while (!stop.load(std::memory_order_relaxed)) {
      if (reader.poll() > 0) writer.post();
    }
  });
  Writer writer(pair.alice, pair.bob, bytes);
  Reader reader(pair.alice);
  for (auto _ : state) {
    writer.post();
    while (reader.poll() == 0) {
    }
  }
  stop = true;
  echo.join();
  state.SetItemsProcessed(state.iterations() * 2);  // so that the time per item is one way
}
BENCHMARK(BM_PingPong)->Arg(64)->Arg(65536)->UseRealTime();

void BM_CreateConnection(benchmark::State& state) {
  for (auto _ : state) RcPair pair(deep(), deep());
}
BENCHMARK(BM_CreateConnection);

}  // namespace
}  // namespace ringsock::soft::testing

BENCHMARK_MAIN();
