// Loads the shared object as packetdrill does and plays short exchanges of packets on it, in IPv4 and IPv6.
#include "tests/packetdrill/interface.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <random>
#include <string>

#include "core/engine/tcp/options.h"
#include "tests/packetdrill/packet.h"
#include "tests/support/sanitizers.h"

namespace ringsock::packetdrill {
namespace {

using engine::tcp::SegmentOut;
using Bytes = std::vector<std::byte>;
enum : std::uint8_t { F = 1, S = 2, R = 4, P = 8, A = 16 };

class Interface : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    constexpr int kDeepBind = support::kHasAddressSanitizer ? 0 : RTLD_DEEPBIND;  // whose runtime refuses that
    library_ = dlopen(PACKETDRILL_LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE | kDeepBind);
    ASSERT_NE(library_, nullptr) << dlerror();
    using Init = void (*)(const char*, packetdrill_interface*);
    const auto init = reinterpret_cast<Init>(dlsym(library_, "packetdrill_interface_init"));
    ASSERT_NE(init, nullptr);
    init("", &t_);
    local_ = make("192.168.0.1", "fd3d:fa7b:d17d::1", 8080);
    remote_ = make("192.0.2.1", "2001:db8::1", 40'000);
  }
  void TearDown() override {
    if (t_.free != nullptr) t_.free(t_.userdata);
  }
  [[nodiscard]] Endpoint make(const char* v4, const char* v6, std::uint16_t port) const {
    Endpoint out;
    out.address[10] = out.address[11] = 0xff;
    if (GetParam())
      inet_pton(AF_INET6, v6, out.address.data());
    else
      inet_pton(AF_INET, v4, out.address.data() + 12);
    out.port = port;
    return out;
  }
  int socket() { return t_.socket(t_.userdata, GetParam() ? AF_INET6 : AF_INET, SOCK_STREAM, 0); }
  template <class Function>
  int with_address(Function call, int fd, const Endpoint& to) {
    sockaddr_in6 v6{};
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(to.port);
    std::memcpy(&v6.sin6_addr, to.address.data(), 16);
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_port = v6.sin6_port;
    std::memcpy(&v4.sin_addr, to.address.data() + 12, 4);
    return GetParam() ? call(t_.userdata, fd, reinterpret_cast<sockaddr*>(&v6), sizeof v6)
                      : call(t_.userdata, fd, reinterpret_cast<sockaddr*>(&v4), sizeof v4);
  }
  int listener() {
    const int fd = socket();
    EXPECT_EQ(with_address(t_.bind, fd, local_), 0);
    EXPECT_EQ(t_.listen(t_.userdata, fd, 1), 0);
    return fd;
  }
  /// A packet from the remote side; `seq` counts from its SYN, `ack` from ours.
  void in(std::uint8_t flags, std::uint32_t seq, std::uint32_t length, std::uint32_t ack, std::uint16_t window = 32'792,
          const engine::tcp::Options& options = {}) {
    SegmentOut out;
    out.flags = flags;
    out.seq = seq;
    out.ack = our_initial_ + ack;
    out.window = window;
    out.option_bytes = engine::tcp::emit_options(options, out.options);
    const Bytes payload(length, std::byte{'y'});
    out.payload[0] = payload;
    for (const Bytes& packet : make_packets(remote_, local_, out, true))
      ASSERT_EQ(t_.netdev_send(t_.userdata, packet.data(), packet.size()), 0);
  }
  /// The next packet of the stack: "FLAGS seq:end ack N"; its time in ms since the last one.
  std::string out() {
    Bytes packet(65'535);
    std::size_t size = packet.size();
    long long when = 0;
    if (t_.netdev_receive(t_.userdata, packet.data(), &size, &when) != 0) return "nothing";
    waited_ms_ = (when - last_) / 1000;
    last_ = when;
    last_packet_.assign(packet.begin(), packet.begin() + static_cast<std::ptrdiff_t>(size));
    const auto got = parse_packet(last_packet_);
    if (!got) return "broken";
    const auto& segment = got->segment;
    if ((segment.flags & S) != 0) our_initial_ = segment.seq;
    local_ = got->source;
    options_ = engine::tcp::parse_options(segment.options);
    window_ = segment.window;
    const std::uint32_t seq = segment.seq - our_initial_;
    std::string text;
    for (const auto& [bit, letter] : {std::pair{S, 'S'}, {F, 'F'}, {R, 'R'}, {P, 'P'}, {A, '.'}})
      if ((segment.flags & bit) != 0) text += letter;
    return text + ' ' + std::to_string(seq) + ':' + std::to_string(seq + segment.payload.size()) + " ack " +
           std::to_string(segment.ack);
  }
  int established() {
    const int fd = listener();
    engine::tcp::Options syn;
    syn.mss = 1000;
    syn.sack_permitted = true;
    in(S, 0, 0, 0, 32'792, syn);
    EXPECT_EQ(out(), "S. 0:0 ack 1");
    in(A, 1, 0, 1);
    return t_.accept(t_.userdata, fd, nullptr, nullptr);
  }
  ssize_t write(int fd, std::size_t size) { return t_.write(t_.userdata, fd, Bytes(size).data(), size); }
  ssize_t read(int fd, std::size_t size) { return t_.read(t_.userdata, fd, Bytes(size).data(), size); }

  void* library_ = nullptr;
  packetdrill_interface t_{};
  Endpoint local_, remote_;
  std::uint32_t our_initial_ = 0;
  Bytes last_packet_;
  engine::tcp::Options options_;
  std::uint16_t window_ = 0;
  long long last_ = 0, waited_ms_ = 0;
};

TEST_P(Interface, AHandshakeOffersWhatLinuxOffers) {
  listener();
  engine::tcp::Options syn;
  syn.mss = 1000;
  syn.window_scale = 7;
  syn.sack_permitted = syn.timestamps = true;
  syn.ts_value = 9;
  in(S, 0, 0, 0, 32'792, syn);
  EXPECT_EQ(out(), "S. 0:0 ack 1");
  EXPECT_EQ(options_.mss, GetParam() ? 1440 : 1460);
  EXPECT_EQ(options_.window_scale, 7);
  EXPECT_EQ(options_.ts_echo, 9u);
  EXPECT_EQ(window_, GetParam() ? 64'260 : 65'160);
}

TEST_P(Interface, ASynIsRepeatedAfter12And4S) {
  const int fd = socket();
  const int flags = t_.fcntl(t_.userdata, fd, F_GETFL);
  t_.fcntl(t_.userdata, fd, F_SETFL, flags | O_NONBLOCK);
  EXPECT_EQ(with_address(t_.connect, fd, remote_), -1);
  EXPECT_EQ(errno, EINPROGRESS);
  EXPECT_EQ(out(), "S 0:0 ack 0");
  EXPECT_EQ(window_, GetParam() ? 64'800 : 64'240);
  for (const int wanted : {1000, 2000, 4000}) {
    EXPECT_EQ(out(), "S 0:0 ack 0");
    EXPECT_EQ(waited_ms_, wanted);
  }
}

TEST_P(Interface, TheInitialWindowIs10Segments) {
  const int fd = established();
  EXPECT_EQ(write(fd, 20'000), 20'000);
  std::string last;
  for (int i = 0; i < 10; ++i) last = out();
  EXPECT_EQ(last.substr(last.find(' ')), " 9001:10001 ack 1");
  out();
  EXPECT_GE(waited_ms_, 1) << "an eleventh segment left at once";
}

TEST_P(Interface, CloseWithUnreadDataResets) {
  const int fd = established();
  in(P | A, 1, 100, 1);
  EXPECT_EQ(out(), ". 1:1 ack 101");
  EXPECT_EQ(t_.close(t_.userdata, fd), 0);
  EXPECT_EQ(out(), "R. 1:1 ack 101");
}

TEST_P(Interface, LingerOf0SResets) {
  const int fd = established();
  const linger value{1, 0};
  EXPECT_EQ(t_.setsockopt(t_.userdata, fd, SOL_SOCKET, SO_LINGER, &value, sizeof value), 0);
  EXPECT_EQ(t_.close(t_.userdata, fd), 0);
  EXPECT_EQ(out(), "R. 1:1 ack 1");
}

TEST_P(Interface, ACloseGoesThroughTimeWait) {
  const int fd = established();
  EXPECT_EQ(t_.close(t_.userdata, fd), 0);
  EXPECT_EQ(out(), "F. 1:1 ack 1");
  in(F | A, 1, 0, 2);
  EXPECT_EQ(out(), ". 2:2 ack 2");
  in(F | A, 1, 0, 2);
  EXPECT_EQ(out(), ". 2:2 ack 2");
  EXPECT_EQ(out(), "nothing");
}

TEST_P(Interface, ASegmentToAClosedPortIsReset) {
  in(A, 5, 0, 7);
  EXPECT_EQ(out(), "R 7:7 ack 0");
  in(S, 5, 0, 0);
  EXPECT_EQ(out(), "R. 0:0 ack 6");
}

TEST_P(Interface, ABlockingReadOnASecondThreadEndsWithTheData) {
  const int fd = established();
  auto got = std::async(std::launch::async, [&] {
    const ssize_t bytes = read(fd, 1000);
    timeval now;
    t_.gettimeofday(t_.userdata, &now, nullptr);  // as packetdrill does: the time may go on
    return bytes;
  });
  t_.usleep(t_.userdata, 100'000);
  in(P | A, 1, 300, 1);
  EXPECT_EQ(out(), ". 1:1 ack 301");
  t_.usleep(t_.userdata, 100'000);
  EXPECT_EQ(got.get(), 300);
}

TEST_P(Interface, ThreeReportsOfAGapRepeatTheSegment) {
  const int fd = established();
  EXPECT_EQ(write(fd, 4000), 4000);
  for (int i = 0; i < 4; ++i) out();
  for (std::uint32_t end : {2001u, 3001u, 4001u}) {
    engine::tcp::Options options;
    options.sack_count = 1;
    options.sack[0] = {our_initial_ + 1001, our_initial_ + end};
    in(A, 1, 0, 1, 32'792, options);
  }
  EXPECT_EQ(out(), ". 1:1001 ack 1");
  EXPECT_LT(waited_ms_, 40);
}

TEST_P(Interface, AbsurdPacketsDoNoHarm) {
  established();
  std::mt19937 random(7);
  for (int i = 0; i < 20'000; ++i) {
    Bytes packet(last_packet_);
    packet.resize(random() % (packet.size() + 4));
    for (int changes = static_cast<int>(random() % 4); changes > 0 && !packet.empty(); --changes)
      packet[random() % packet.size()] = static_cast<std::byte>(random());
    EXPECT_EQ(t_.netdev_send(t_.userdata, packet.data(), packet.size()), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Interface, testing::Bool());

}  // namespace
}  // namespace ringsock::packetdrill
