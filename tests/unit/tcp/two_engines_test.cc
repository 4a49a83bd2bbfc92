// Two engines joined by a path that loses, repeats, delays and reorders, in virtual time: whatever it does, the streams
// arrive byte by byte and both ends come to their end.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "core/engine/tcp/connection.h"
#include "core/engine/tcp/lending.h"
#include "tests/support/sanitizers.h"

namespace ringsock::engine::tcp {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// How many worlds of `all` there are: fewer with a sanitizer, which makes each of them thirty times as long.
constexpr std::uint32_t worlds(std::uint32_t all) { return support::kHasAddressSanitizer ? all / 6 : all; }

/// A segment on its way: the spans of SegmentOut end with the next call.
struct Packet {
  SegmentOut header;
  bool marked = false;
  std::vector<std::byte> payload;
};

struct Weather {
  double loss = 0;
  double duplication = 0;
  double reordering = 0;
  double rate = 0;         ///< of a bottleneck towards b, bytes/s; 0: none
  double queue_bytes = 0;  ///< before it; more is dropped
  double marks = 0;        ///< CE on ECN-capable packets
  Nanos delay = milliseconds(10);
  bool cut_into_packets = true;
  std::size_t most_payload = 65'535;
};

std::byte letter(std::uint64_t at) { return static_cast<std::byte>((at * 2'654'435'761u) >> 13); }

struct Side {
  TcpConnection tcp;
  std::uint64_t to_send = 0, sent = 0, received = 0;
  std::size_t most_read = 1 << 20;  ///< bytes of a turn of the application
  bool shut = false;
  bool lends = false;  ///< the application reads bytes where they lie
  std::vector<ByteQueue::Piece> held;
  std::size_t held_bytes = 0, most_held = 0;
  Nanos grown_at{};

  explicit Side(const Settings& set) : tcp(set) {}

  void write_more(Nanos now) {
    std::vector<std::byte> bytes(std::min<std::uint64_t>(to_send - sent, 50'000));
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = letter(sent + i);
    if (!bytes.empty())
      if (const auto count = tcp.write(bytes, now)) sent += *count;
    if (sent == to_send && !shut && tcp.state() != State::syn_sent) {
      shut = true;
      tcp.shutdown_send(now);
    }
  }
  /// Holds pieces until nothing more has come for a second, and then gives all of them back.
  void hold_more(Nanos now) {
    const std::size_t before = held.size();
    while (true) {
      auto piece = Lending(tcp).lend(50'000, now);
      if (piece.bytes.empty()) break;
      held_bytes += piece.bytes.size();
      held.push_back(std::move(piece));
    }
    most_held = std::max(most_held, held_bytes);
    if (held.size() != before) grown_at = now;
    if (now < grown_at + seconds(1)) return;
    for (const auto& piece : held)
      for (const std::byte byte : piece.bytes) ASSERT_EQ(byte, letter(received++)) << "byte " << received;
    Lending(tcp).take_back(std::exchange(held_bytes, 0), now);
    held.clear();
  }
  void read_more(Nanos now) {
    if (lends) return hold_more(now);
    std::vector<std::byte> bytes(std::min(most_read, tcp.readable()));
    const std::size_t count = tcp.read(bytes, now);
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(bytes[i], letter(received + i)) << "byte " << received + i;
    received += count;
  }
  [[nodiscard]] bool done() const {
    const State state = tcp.state();
    return (state == State::closed || state == State::time_wait) && tcp.at_end() && held.empty();
  }
};

class World {
 public:
  World(std::uint32_t seed, Weather weather, const Settings& set = {})
      : random_(seed), weather_(weather), a(set), b(set) {}

  /// Opens the connection by a handshake, or begins it as if the kernel had.
  void open() {
    a.tcp.connect(number(), now);
    open_ = true;
  }
  void begin(bool sack, bool timestamps) {
    Established one{.snd_una = 0xffff'f000,
                    .snd_nxt = 0xffff'f000,
                    .rcv_nxt = 77,
                    .snd_wnd = 65'536,
                    .snd_wl1 = 77,
                    .max_window = 65'536,
                    .rcv_wnd = 65'536,
                    .rcv_wup = 77,
                    .mss = 1460,
                    .snd_scale = 7,
                    .rcv_scale = 7,
                    .window_scaling = true,
                    .sack = sack,
                    .timestamps = timestamps,
                    .timestamp_now = 5,
                    .send_queue = {},
                    .receive_queue = {}};
    Established other = one;
    other.snd_una = other.snd_nxt = one.rcv_nxt;
    other.rcv_nxt = other.rcv_wup = one.snd_nxt;
    other.snd_wl1 = one.snd_nxt;
    ASSERT_TRUE(a.tcp.begin(one, now));
    ASSERT_TRUE(b.tcp.begin(other, now));
  }
  /// Runs until both ends are done or `limit` has passed.
  void run(Nanos limit) {
    while (now < limit && !(a.done() && b.done())) turn();
  }
  void turn() {
    work(a, b);
    work(b, a);
    Nanos next = std::min(a.tcp.next_timer(), b.tcp.next_timer());
    if (!on_way_.empty()) next = std::min(next, on_way_.begin()->first);
    now = std::max(now + microseconds(1), std::min(next, now + milliseconds(20)));
    deliver();
    a.tcp.timers(now);
    b.tcp.timers(now);
    most_memory = std::max({most_memory, a.tcp.info().memory_bytes, b.tcp.info().memory_bytes});
    if (save_chance > 0 && chance(save_chance)) move(chance(0.5) ? a : b);
  }
  /// Leaves the engine and comes back, as to the kernel and back.
  void move(Side& side) {
    auto saved = side.tcp.save(now);
    if (!saved) return;
    TcpConnection fresh(side.tcp.settings());
    ASSERT_TRUE(fresh.begin(*saved, now));
    side.tcp = std::move(fresh);
    ++moves;
  }

 private:
  std::mt19937 random_;
  Weather weather_;
  bool open_ = false;

 public:
  Side a, b;
  Nanos now = seconds(1);
  std::uint32_t most_memory = 0;
  double save_chance = 0;
  int moves = 0;
  std::uint64_t packets = 0;

 private:
  Seq number() { return static_cast<Seq>(random_()); }
  bool chance(double of) { return std::uniform_real_distribution<>(0, 1)(random_) < of; }
  void work(Side& from, Side& to) {
    from.read_more(now);
    if (from.tcp.state() != State::closed) from.write_more(now);
    while (auto out = from.tcp.next_segment(now)) send(*out, &to);
  }
  void send(const SegmentOut& out, Side* to) {
    std::vector<std::byte> bytes;
    for (const auto piece : out.payload) bytes.insert(bytes.end(), piece.begin(), piece.end());
    ASSERT_EQ(bytes.size(), out.payload_bytes);
    const std::size_t packet = weather_.cut_into_packets && out.segment_bytes != 0 ? out.segment_bytes : 65'535;
    std::size_t at = 0;
    do {
      Packet next{out, out.ecn_capable && chance(weather_.marks), {}};
      const std::size_t count = std::min(packet, bytes.size() - at);
      next.payload.assign(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                          bytes.begin() + static_cast<std::ptrdiff_t>(at + count));
      next.header.seq += static_cast<Seq>(at);
      at += count;
      if (at != bytes.size()) next.header.flags &= static_cast<std::uint8_t>(~(kFin | kPsh));
      put(next, to);
    } while (at < bytes.size());
  }
  void put(const Packet& packet, Side* to) {
    ++packets;
    if (packet.payload.size() > weather_.most_payload || chance(weather_.loss)) return;
    Nanos arrives = now + weather_.delay;
    if (weather_.rate != 0 && to == &b) {
      const auto bytes = static_cast<double>(packet.payload.size() + 52);
      const double waits = std::chrono::duration<double>(std::max(link_free_ - now, Nanos{})).count();
      if (waits * weather_.rate + bytes > weather_.queue_bytes) return;
      link_free_ = std::max(link_free_, now) + Nanos(static_cast<std::int64_t>(bytes / weather_.rate * 1e9));
      arrives = link_free_ + weather_.delay;
    }
    if (chance(weather_.reordering)) arrives += weather_.delay / 2;
    on_way_.emplace(arrives, std::pair(to, packet));
    if (chance(weather_.duplication)) on_way_.emplace(arrives + microseconds(300), std::pair(to, packet));
  }
  void deliver() {
    while (!on_way_.empty() && on_way_.begin()->first <= now) {
      auto [to, packet] = std::move(on_way_.begin()->second);
      on_way_.erase(on_way_.begin());
      SegmentIn in{.seq = packet.header.seq,
                   .ack = packet.header.ack,
                   .window = packet.header.window,
                   .urgent = packet.header.urgent,
                   .flags = packet.header.flags,
                   .congestion_experienced = packet.marked,
                   .options = std::span(packet.header.options).first(packet.header.option_bytes),
                   .payload = packet.payload};
      if (open_ && to == &b && to->tcp.state() == State::closed && to->received == 0) {
        if ((in.flags & kSyn) != 0) {
          EXPECT_TRUE(to->tcp.accept(in, number(), now));
        }
      } else {
        to->tcp.segment(in, now);
      }
    }
  }
  std::multimap<Nanos, std::pair<Side*, Packet>> on_way_;
  Nanos link_free_{};
};

void expect_both_ends(World& world) {
  EXPECT_TRUE(world.a.done()) << "state " << static_cast<int>(world.a.tcp.state());
  EXPECT_TRUE(world.b.done()) << "state " << static_cast<int>(world.b.tcp.state());
  EXPECT_EQ(world.a.received, world.b.to_send);
  EXPECT_EQ(world.b.received, world.a.to_send);
  EXPECT_EQ(world.a.tcp.error(), 0);
  EXPECT_EQ(world.b.tcp.error(), 0);
}

TEST(TwoEngines, CarryAMegabyteOverAClearPathWithoutARepeat) {
  World world(1, {});
  world.a.to_send = 1'000'000;
  world.open();
  world.run(seconds(60));
  expect_both_ends(world);
  EXPECT_EQ(world.a.tcp.info().total_retransmits, 0u);
  EXPECT_LT(world.now, seconds(2));
}

TEST(TwoEngines, BothWaysThroughABadPath) {
  for (std::uint32_t seed = 1; seed <= worlds(60); ++seed) {
    SCOPED_TRACE(seed);
    World world(seed, {.loss = 0.01 * (seed % 11),
                       .duplication = 0.02 * (seed % 3),
                       .reordering = 0.05 * (seed % 4),
                       .delay = milliseconds(1 + seed % 40),
                       .cut_into_packets = seed % 5 != 0});
    world.a.to_send = 200'000;
    world.b.to_send = seed % 2 == 0 ? 0 : 90'000;
    if (seed % 3 == 0)
      world.begin(seed % 2 == 0, seed % 4 == 0);
    else
      world.open();
    world.run(seconds(4000));
    expect_both_ends(world);
    EXPECT_LT(world.most_memory, 3'000'000u);
    if (HasFailure()) return;
  }
}

TEST(TwoEngines, AReaderThatIsSlowAndASmallBufferLoseNothing) {
  for (std::uint32_t seed = 1; seed <= worlds(30); ++seed) {
    SCOPED_TRACE(seed);
    Settings set;
    set.receive_bytes = set.most_receive_bytes = 4096 + 1000 * (seed % 7);
    set.algorithm = seed % 2 == 0 ? Algorithm::cubic : Algorithm::new_reno;
    World world(seed, {.loss = 0.03 * (seed % 2)}, set);
    world.a.to_send = 60'000;
    world.b.most_read = 1 + seed * 100;
    world.open();
    world.run(seconds(4000));
    expect_both_ends(world);
    EXPECT_LT(world.b.tcp.info().memory_bytes, 100'000u);
    if (HasFailure()) return;
  }
}

TEST(TwoEngines, AReaderThatReadsBytesWhereTheyLieGetsAllAndShutsTheWindowMeanwhile) {
  Settings set;
  set.receive_bytes = set.most_receive_bytes = 100'000;
  World world(5, {.loss = 0.01}, set);
  world.a.to_send = 2'000'000;
  world.b.lends = true;
  world.open();
  world.run(seconds(4000));
  expect_both_ends(world);
  EXPECT_LE(world.b.most_held, 100'000u) << "what is held counts as unread";
  EXPECT_GT(world.b.most_held, 20'000u);
}

TEST(TwoEngines, MovingToTheKernelAndBackAtAnyMomentLosesNothing) {
  int moves = 0;
  for (std::uint32_t seed = 1; seed <= worlds(30); ++seed) {
    SCOPED_TRACE(seed);
    World world(seed, {.loss = 0.01 * (seed % 4), .reordering = 0.05 * (seed % 3)});
    world.save_chance = 0.1;
    world.a.to_send = 1'000'000;
    world.b.to_send = 50'000;
    world.open();
    world.run(seconds(4000));
    expect_both_ends(world);
    moves += world.moves;
    if (HasFailure()) return;
  }
  EXPECT_GT(moves, static_cast<int>(worlds(100)));
}

TEST(TwoEngines, EveryChoiceOfOptionsCarriesBothWays) {
  for (std::uint32_t seed = 1; seed <= worlds(64); ++seed) {
    SCOPED_TRACE(seed);
    Settings set;
    set.sack = (seed & 1) != 0;
    set.timestamps = (seed & 2) != 0;
    set.window_scaling = (seed & 4) != 0;
    set.algorithm = (seed & 8) != 0 ? Algorithm::cubic : Algorithm::new_reno;
    set.ecn = set.ask_ecn = (seed & 16) != 0;
    set.most_pacing_rate = (seed & 32) != 0 ? 2'000'000 : 0;
    set.most_mss = seed % 5 == 0 ? 200 : 0;
    World world(seed, {.loss = 0.03, .duplication = 0.02, .reordering = 0.05, .marks = 0.05}, set);
    world.a.to_send = 150'000;
    world.b.to_send = 40'000;
    world.open();
    world.run(seconds(4000));
    expect_both_ends(world);
    EXPECT_EQ(world.a.tcp.info().ecn, world.b.tcp.info().ecn);
    if (HasFailure()) return;
  }
}

TEST(TwoEngines, APathThatMarksInsteadOfDroppingNeedsNoRepeat) {
  Settings set;
  set.ask_ecn = true;
  World world(3, {.marks = 0.02}, set);
  world.a.to_send = 2'000'000;
  world.open();
  world.run(seconds(600));
  expect_both_ends(world);
  EXPECT_EQ(world.a.tcp.info().total_retransmits, 0u);
  EXPECT_GT(world.a.tcp.info().congestion_echoes, 2u);
}

TEST(TwoEngines, APacedSenderKeepsItsRate) {
  Settings set;
  set.most_pacing_rate = 500'000;
  World world(4, {}, set);
  world.a.to_send = 1'000'000;
  world.open();
  world.run(seconds(600));
  expect_both_ends(world);
  EXPECT_GT(world.now, seconds(1) + milliseconds(1900));
  EXPECT_LT(world.now, seconds(1) + milliseconds(2300));
}

/// A path that drops what is longer than 700 bytes and tells nobody.
TEST(TwoEngines, ABlackHoleIsFound) {
  World world(5, {.most_payload = 700});
  world.a.to_send = 100'000;
  world.open();
  world.run(seconds(600));
  expect_both_ends(world);
  EXPECT_GE(world.a.tcp.info().black_holes, 1u);
}

TEST(TwoEngines, AHostilePeerThatSendsEverySecondByteFirstGetsNoMoreMemory) {
  World world(6, {});
  world.begin(true, false);
  const std::byte byte{};
  Seq next = 0xffff'f000;
  for (int i = 0; i < 20'000; ++i, next += 64)
    for (int offset : {1, 0})
      for (Seq at = 0; at < 64; at += 2) {
        const SegmentIn in{.seq = next + at + static_cast<Seq>(offset),
                           .ack = 77,
                           .window = 500,
                           .flags = kAck,
                           .options = {},
                           .payload = {&byte, 1}};
        world.b.tcp.segment(in, world.now);
        while (world.b.tcp.next_segment(world.now)) {
        }
      }
  EXPECT_GE(world.b.tcp.readable(), 65'536u);
  EXPECT_LE(world.b.tcp.readable(), 131'072u);
  EXPECT_LT(world.b.tcp.info().memory_bytes, 600'000u);
}

/// What CUBIC gives on average (RFC 9438, 5): in its Reno-friendly region that is RFC 3649's sqrt(3/2p) segments.
TEST(TwoEngines, GoodputAtOnePercentOfLossIsWhatCubicShouldGive) {
  if (support::kHasAddressSanitizer) GTEST_SKIP() << "a figure, which is the same with a sanitizer";
  double bytes = 0, time = 0;
  for (std::uint32_t seed = 1; seed <= 10; ++seed) {
    World world(seed, {.loss = 0.01, .delay = milliseconds(10)});
    world.a.to_send = 5'000'000;
    world.open();
    world.run(seconds(600));
    expect_both_ends(world);
    bytes += 5e6;
    time += std::chrono::duration<double>(world.now - seconds(1)).count();
  }
  const double expected = std::sqrt(1.5 / 0.01) * 1448 / 0.020;
  std::printf("goodput %.0f bytes/s, %.2f of what CUBIC should give\n", bytes / time, bytes / time / expected);
  EXPECT_GT(bytes / time, 0.9 * expected);
  EXPECT_LT(bytes / time, 2.0 * expected);  // not at the cost of others
}

/// Ten megabytes a second, 20 ms, and a queue of one round trip.
TEST(TwoEngines, ABottleneckIsFilledAndFewPacketsAreLost) {
  if (support::kHasAddressSanitizer) GTEST_SKIP() << "a figure, which is the same with a sanitizer";
  for (const Algorithm algorithm : {Algorithm::cubic, Algorithm::new_reno}) {
    Settings set;
    set.algorithm = algorithm;
    World world(1, {.rate = 10e6, .queue_bytes = 200e3}, set);
    world.a.to_send = 20'000'000;
    world.open();
    world.run(seconds(600));
    expect_both_ends(world);
    const Info info = world.a.tcp.info();
    const double share = 20e6 / 10e6 / std::chrono::duration<double>(world.now - seconds(1)).count();
    std::printf("%.2f of the link, %u of %d packets repeated, %u time-outs\n", share, info.total_retransmits,
                20'000'000 / 1448, info.time_outs);
    EXPECT_GT(share, 0.85);
    EXPECT_EQ(info.time_outs, 0u);
    EXPECT_LT(info.total_retransmits, 20'000'000u / 1448 / 30);  // what the first slow start overshoots by
  }
}

TEST(TwoEngines, ReorderingAloneCostsFewRepeats) {
  World world(9, {.reordering = 0.02});
  world.a.to_send = 5'000'000;
  world.open();
  world.run(seconds(600));
  expect_both_ends(world);
  const Info info = world.a.tcp.info();
  std::printf("%u of %d packets repeated in %.1f s, undone %u, %u DSACKs\n", info.total_retransmits, 5'000'000 / 1448,
              std::chrono::duration<double>(world.now - seconds(1)).count(), info.undone_recoveries,
              info.duplicate_sacks);
  EXPECT_LT(info.total_retransmits, 5'000'000u / 1448 / 20);
}

TEST(TwoEngines, OnePercentOfLossCostsLittleTime) {
  World world(7, {.loss = 0.01, .delay = milliseconds(10)});
  world.a.to_send = 5'000'000;
  world.open();
  world.run(seconds(600));
  expect_both_ends(world);
  EXPECT_LE(world.a.tcp.info().time_outs, 3u);
  EXPECT_LT(world.now, seconds(15));
}

}  // namespace
}  // namespace ringsock::engine::tcp
