// Random applications on two engines, over a path that loses, repeats and reorders, against a plain model of what an
// application sees: bytes in order, the end behind all of them, errors only for a reason, no event forgotten. A failure
// prints the seed; RINGSOCK_SEED=N plays that one alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/engine/tcp/connection.h"
#include "tests/support/sanitizers.h"

namespace ringsock::engine::tcp {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// The model of one direction: a pipe that its writer fills and ends, and that its reader empties.
struct Pipe {
  std::uint64_t written = 0;  ///< bytes that write() has taken
  std::uint64_t read = 0;     ///< bytes that read() has given
  bool ended = false;         ///< the writer has called shutdown_send() or close()
};

std::byte letter(std::uint64_t at) { return static_cast<std::byte>((at * 2'654'435'761u) >> 13); }

struct Chance {
  std::mt19937 engine;
  bool operator()(double of) { return std::uniform_real_distribution<>(0, 1)(engine) < of; }
  std::uint32_t below(std::uint32_t limit) {
    return std::uniform_int_distribution<std::uint32_t>(0, limit - 1)(engine);
  }
  /// Small numbers, packets and more than a buffer are all frequent.
  std::size_t size() {
    switch (below(4)) {
      case 0: return 1 + below(20);
      case 1: return 1 + below(1500);
      case 2: return 1 + below(20'000);
      default: return 1 + below(200'000);
    }
  }
};

/// A program with one connection. It calls at random until its calls are used up, then reads to the end and closes.
class Program {
 public:
  Program(const char* name, const Settings& set, Pipe& out, Pipe& in) : tcp(set), name_(name), out_(out), in_(in) {}

  /// Makes one call. Returns when the next one is due.
  Nanos act(Chance& chance, Nanos now) {
    notice();
    if (gone) return Nanos::max();
    if (calls_left == 0)
      finish(now);
    else
      --calls_left, call(chance, now);
    return now + (chance(0.3) ? microseconds(chance.below(200)) : microseconds(chance.below(300'000)));
  }
  /// Takes the events, and compares them with what there is.
  void notice() {
    const std::uint8_t events = tcp.take_events();
    seen |= events;
    if ((events & kReadable) != 0) may_read_ = true;
    if ((events & kWritable) != 0) blocked_ = false;
    EXPECT_TRUE(may_read_ || gone || tcp.readable() == 0) << name_ << ": bytes came without an event";
    EXPECT_TRUE(!blocked_ || gone || !tcp.is_writable())
        << name_ << ": room came without an event, " << tcp.room() << " bytes, unsent " << tcp.unsent();
    if (tcp.error() != 0) {
      EXPECT_TRUE(gone || peer->breaks(out_)) << name_ << ": error " << tcp.error() << " without a reason";
      broken = true;
    }
  }
  /// Returns whether the other side may see a reset.
  [[nodiscard]] bool breaks(const Pipe& towards) const {
    return aborted || (gone && towards.written > received_at_close_) || (gone && tcp.state() == State::closed);
  }
  [[nodiscard]] bool gone_by_force() const { return aborted || broken; }
  [[nodiscard]] bool is_over() const {
    return gone && (tcp.state() == State::closed || tcp.state() == State::time_wait);
  }

  TcpConnection tcp;
  Program* peer = nullptr;
  int calls_left = 0;
  double abort_chance = 0;
  bool gone = false;     ///< it has called close() or abort()
  bool aborted = false;  ///< by abort(), or by close() with unread bytes
  bool broken = false;   ///< it has seen an error
  std::uint8_t seen = 0;

 private:
  void call(Chance& chance, Nanos now) {
    if (chance(abort_chance)) return chance(0.5) ? abort(now) : close(now);
    switch (chance.below(12)) {
      case 0: return chance(0.15) ? shut(now) : chance(0.2) ? move(now) : change(chance, now);
      case 1:
      case 2:
      case 3:
      case 4:
      case 5: return write(chance.size(), now);
      case 6: return look(chance.size());
      default: return read(chance.size(), now);
    }
  }
  /// The connection goes to the kernel and comes back.
  void move(Nanos now) {
    auto saved = tcp.save(now);
    if (!saved) return;
    TcpConnection fresh(tcp.settings());
    ASSERT_TRUE(fresh.begin(*saved, now)) << name_;
    tcp = std::move(fresh);
  }
  void write(std::size_t size, Nanos now) {
    std::vector<std::byte> bytes(size);
    for (std::size_t i = 0; i < size; ++i) bytes[i] = letter(out_.written + i);
    const std::size_t room = tcp.room();
    const auto count = size % 16 == 1 ? tcp.write_urgent(bytes, now) : tcp.write(bytes, now);
    if (!count) {
      EXPECT_TRUE(out_.ended || broken) << name_ << ": write() fails with " << count.error().code;
      EXPECT_EQ(count.error().code, EPIPE);
      return;
    }
    EXPECT_FALSE(out_.ended) << name_ << ": write() after the end";
    EXPECT_EQ(*count, std::min(size, room));
    out_.written += *count;
    if (*count < size) blocked_ = true;
  }
  void read(std::size_t size, Nanos now) {
    const std::size_t there = tcp.readable();
    std::vector<std::byte> bytes(size);
    const std::size_t count = tcp.read(bytes, now);
    ASSERT_EQ(count, std::min(size, there)) << name_;
    expect_letters(bytes, count, in_.read);
    in_.read += count;
    EXPECT_LE(in_.read, in_.written) << name_ << ": more bytes than were written";
    if (tcp.readable() == 0) may_read_ = false;
    if (count == 0 && tcp.at_end() && tcp.error() == 0 && !broken) {
      EXPECT_TRUE(in_.ended) << name_ << ": an end that nobody has made";
      EXPECT_EQ(in_.read, in_.written) << name_ << ": the end comes before the bytes";
    }
  }
  void look(std::size_t size) {
    std::vector<std::byte> bytes(size);
    const std::size_t count = tcp.peek(bytes);
    EXPECT_EQ(count, std::min(size, tcp.readable())) << name_;
    expect_letters(bytes, count, in_.read);
  }
  void expect_letters(const std::vector<std::byte>& bytes, std::size_t count, std::uint64_t from) {
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(bytes[i], letter(from + i)) << name_ << ": byte " << from + i;
  }
  void change(Chance& chance, Nanos now) {
    Settings set = tcp.settings();
    switch (chance.below(5)) {
      case 0: set.nodelay = !set.nodelay; break;
      case 1: set.cork = !set.cork; break;
      case 2: set.receive_bytes = 2048 + chance.below(100'000); break;
      case 3: set.notsent_lowat = chance(0.5) ? UINT32_MAX : 1 + chance.below(50'000); break;
      default: return tcp.set_quick_ack(chance(0.5), now);
    }
    blocked_ = blocked_ && set.notsent_lowat == tcp.settings().notsent_lowat;
    tcp.set(set, now);
  }
  void shut(Nanos now) {
    out_.ended = true;
    blocked_ = false;  // from now on write() fails at once
    tcp.shutdown_send(now);
  }
  void close(Nanos now) {
    aborted = tcp.readable() != 0;
    received_at_close_ = in_.read + tcp.readable();
    gone = out_.ended = true;
    tcp.close(now);
  }
  void abort(Nanos now) {
    gone = aborted = true;
    tcp.abort(now);
  }
  /// Reads what comes, by events only, and closes behind the end.
  void finish(Nanos now) {
    if (tcp.settings().cork) {
      Settings set = tcp.settings();
      set.cork = false;
      tcp.set(set, now);
    }
    if (!out_.ended) shut(now);
    if (may_read_) read(1 << 20, now);
    if (tcp.at_end()) close(now);
  }

  const char* name_;
  Pipe& out_;
  Pipe& in_;
  bool may_read_ = true;
  bool blocked_ = false;
  std::uint64_t received_at_close_ = 0;
};

struct Weather {
  double loss, duplication, reordering;
  Nanos delay;
  bool cut_into_packets;
  double marks;       ///< CE on ECN-capable packets
  double mtu_chance;  ///< for each packet: the path becomes narrower, and tells so
  [[nodiscard]] bool is_clear() const { return loss == 0 && duplication == 0 && reordering == 0 && mtu_chance == 0; }
};

class Scenario {
 public:
  Scenario(std::uint32_t seed, const Settings& set, Weather weather)
      : chance{std::mt19937(seed)}, weather_(weather), a("a", set, there_, back_), b("b", set, back_, there_) {
    a.peer = &b;
    b.peer = &a;
  }
  void begin(const Established& one, const Established& other) {
    ASSERT_TRUE(a.tcp.begin(one, now_));
    ASSERT_TRUE(b.tcp.begin(other, now_));
  }
  void run() {
    const Nanos limit = seconds(3000);
    while (now_ < limit && !(a.is_over() && b.is_over()) && !testing::Test::HasFailure()) turn();
    if (testing::Test::HasFailure()) return;
    EXPECT_TRUE(a.is_over()) << "a is in state " << static_cast<int>(a.tcp.state());
    EXPECT_TRUE(b.is_over()) << "b is in state " << static_cast<int>(b.tcp.state());
    a.notice();
    b.notice();
    EXPECT_NE(a.seen & kClosed, 0) << "a was not told";
    EXPECT_NE(b.seen & kClosed, 0) << "b was not told";
    if (weather_.is_clear() && !a.gone_by_force() && !b.gone_by_force()) {
      EXPECT_EQ(a.tcp.info().time_outs, 0u);
      EXPECT_EQ(b.tcp.info().time_outs, 0u);
    }
    if (a.gone_by_force() || b.gone_by_force()) return;
    EXPECT_EQ(there_.read, there_.written);
    EXPECT_EQ(back_.read, back_.written);
  }

  Chance chance;

 private:
  struct Packet {
    SegmentOut header;
    std::vector<std::byte> payload;
    bool marked = false;
  };
  void turn() {
    send_all(a, b);
    send_all(b, a);
    a.notice();
    b.notice();
    Nanos next = std::min({a.tcp.next_timer(), b.tcp.next_timer(), next_a_, next_b_});
    if (!on_way_.empty()) next = std::min(next, on_way_.begin()->first);
    ASSERT_NE(next, Nanos::max()) << "nothing happens any more";
    now_ = std::max(now_ + microseconds(1), next);
    while (!on_way_.empty() && on_way_.begin()->first <= now_) deliver();
    a.tcp.timers(now_);
    b.tcp.timers(now_);
    if (next_a_ <= now_) next_a_ = a.act(chance, now_);
    if (next_b_ <= now_) next_b_ = b.act(chance, now_);
  }
  void send_all(Program& from, Program& to) {
    while (const auto out = from.tcp.next_segment(now_)) {
      std::vector<std::byte> bytes;
      for (const auto piece : out->payload) bytes.insert(bytes.end(), piece.begin(), piece.end());
      cut(*out, bytes, from, to);
    }
  }
  void cut(const SegmentOut& out, const std::vector<std::byte>& bytes, Program& from, Program& to) {
    const std::size_t packet = weather_.cut_into_packets && out.segment_bytes != 0 ? out.segment_bytes : 65'535;
    std::size_t at = 0;
    do {
      const std::size_t count = std::min(packet, bytes.size() - at);
      const auto first = bytes.begin() + static_cast<std::ptrdiff_t>(at);
      Packet next{out, {first, first + static_cast<std::ptrdiff_t>(count)}, out.ecn_capable && chance(weather_.marks)};
      next.header.seq += static_cast<Seq>(at);
      at += count;
      if (at != bytes.size()) next.header.flags &= static_cast<std::uint8_t>(~(kFin | kPsh));
      if (weather_.cut_into_packets && chance(weather_.mtu_chance)) mtu_payload_ = 512 + chance.below(900);
      if (weather_.cut_into_packets && count + out.option_bytes > mtu_payload_)
        from.tcp.packet_too_big(static_cast<std::uint16_t>(mtu_payload_), next.header.seq, now_);
      else
        put(next, to);
    } while (at < bytes.size());
  }
  void put(const Packet& packet, Program& to) {
    if (chance(weather_.loss)) return;
    Nanos arrives = now_ + weather_.delay;
    if (chance(weather_.reordering)) arrives += weather_.delay / 2;
    on_way_.emplace(arrives, std::pair(&to, packet));
    if (chance(weather_.duplication)) on_way_.emplace(arrives + weather_.delay * 3, std::pair(&to, packet));
  }
  void deliver() {
    const auto [to, packet] = std::move(on_way_.begin()->second);
    on_way_.erase(on_way_.begin());
    const SegmentOut& header = packet.header;
    if (to->tcp.state() == State::closed) return refuse(header, *to->peer);
    to->tcp.segment({.seq = header.seq,
                     .ack = header.ack,
                     .window = header.window,
                     .urgent = header.urgent,
                     .flags = header.flags,
                     .congestion_experienced = packet.marked,
                     .options = std::span(header.options).first(header.option_bytes),
                     .payload = packet.payload},
                    now_);
  }
  /// RFC 9293, 3.10.7.1: a host that has forgotten the connection.
  void refuse(const SegmentOut& to, Program& sender) {
    if ((to.flags & kRst) != 0) return;
    SegmentOut reset;
    reset.seq = to.ack;
    reset.flags = kRst;
    put({reset, {}, false}, sender);
  }

  Weather weather_;
  std::size_t mtu_payload_ = 65'535;
  Pipe there_, back_;
  std::multimap<Nanos, std::pair<Program*, Packet>> on_way_;
  Nanos now_ = seconds(1), next_a_ = now_, next_b_ = now_;

 public:
  Program a, b;
};

/// Both halves of a connection as the kernel would hand them over; the numbers wrap soon.
std::pair<Established, Established> halves(Chance& chance, const Settings& set) {
  Established one;
  one.snd_una = one.snd_nxt = 0u - chance.below(100'000);
  one.rcv_nxt = one.rcv_wup = one.snd_wl1 = 0u - chance.below(100'000);
  one.window_scaling = chance(0.7);
  one.snd_scale = one.rcv_scale = one.window_scaling ? 7 : 0;
  one.sack = chance(0.7);
  one.timestamps = chance(0.6);
  one.ecn = chance(0.3);
  one.timestamp_now = one.ts_recent = 0u - 1 - chance.below(5000);
  one.mss = static_cast<std::uint16_t>(100 + chance.below(1361));
  one.snd_wnd = one.rcv_wnd = one.max_window = std::min(set.receive_bytes, 65'535u);
  Established other = one;
  std::swap(other.snd_una, other.rcv_nxt);
  other.snd_nxt = other.snd_una;
  other.rcv_wup = other.snd_wl1 = other.rcv_nxt;
  return {one, other};
}

void play(std::uint32_t seed, double abort_chance) {
  SCOPED_TRACE("RINGSOCK_SEED=" + std::to_string(seed));
  Chance choice{std::mt19937(seed * 7919)};
  Settings set;
  set.receive_bytes = choice(0.5) ? 2048 + choice.below(30'000) : 131'072;
  set.most_receive_bytes = choice(0.5) ? set.receive_bytes : 1u << 20;
  set.send_bytes = 4096 + choice.below(100'000);
  set.most_send_bytes = choice(0.5) ? set.send_bytes : 1u << 20;
  set.algorithm = choice(0.5) ? Algorithm::cubic : Algorithm::new_reno;
  set.nodelay = choice(0.3);
  set.urgent_inline = true;
  set.most_pacing_rate = choice(0.2) ? 100'000 + choice.below(2'000'000) : 0;
  set.keepalive = true;  // a reset that is lost is found out by the next probe only
  set.keepalive_idle = seconds(100);
  const auto delay = microseconds(50 + choice.below(choice(0.5) ? 1000 : 50'000));
  const double bad = choice(0.2) ? 0 : 1;  // a fifth of the paths is clear
  Scenario scenario(seed, set,
                    {.loss = choice(0.3) ? 0 : bad * 0.01 * choice.below(10),
                     .duplication = bad * 0.02 * choice.below(4),
                     .reordering = bad * 0.05 * choice.below(4),
                     .delay = delay,
                     .cut_into_packets = choice(0.7),
                     .marks = choice(0.5) ? 0.05 : 0,
                     .mtu_chance = choice(0.2) ? bad * 0.01 : 0});
  const auto [one, other] = halves(choice, set);
  scenario.begin(one, other);
  for (Program* each : {&scenario.a, &scenario.b}) {
    each->calls_left = static_cast<int>(choice.below(150));
    each->abort_chance = abort_chance;
  }
  scenario.run();
}

constexpr std::uint32_t kSeeds = 1000;

void play_all(double abort_chance) {
  if (const char* seed = std::getenv("RINGSOCK_SEED"))
    return play(static_cast<std::uint32_t>(std::strtoul(seed, nullptr, 10)), abort_chance);
  const std::uint32_t all = support::kHasAddressSanitizer ? 100 : kSeeds;
  for (std::uint32_t seed = 1; seed <= all && !testing::Test::HasFailure(); ++seed) play(seed, abort_chance);
}

TEST(RandomCalls, EveryByteArrivesOnceAndTheEndBehindAllOfThem) { play_all(0); }
TEST(RandomCalls, AnEndInTheMiddleBreaksNothingElse) { play_all(0.02); }

}  // namespace
}  // namespace ringsock::engine::tcp
