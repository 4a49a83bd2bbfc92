// What the variables VMA_TCP_* and VMA_MSS do to connections on rings: a suite per round of
// tcp_variables_vma.sh.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "tests/vma/tcp_world.h"

namespace ringsock::vma_tests {
namespace {

using testing::HasSubstr;
using testing::Not;

/// The kernel's description of a connection: TCP_INFO of Linux since 4.6, as far as these stories need it.
struct Figures {
  tcp_info first;
  std::uint64_t pacing_rate, most_pacing_rate, bytes_acked, bytes_received;
  std::uint32_t segments_out, segments_in;
};
static_assert(offsetof(Figures, segments_in) == 140);

Figures figures_of_kernel(const Stream& stream) {
  Figures out{};
  socklen_t length = sizeof out;
  EXPECT_EQ(raw_syscall(SYS_getsockopt, stream.fd(), IPPROTO_TCP, TCP_INFO, &out, &length), 0);
  return out;
}
Figures figures_of(const Stream& stream) {
  Figures out{};
  socklen_t length = sizeof out;
  EXPECT_EQ(::getsockopt(stream.fd(), IPPROTO_TCP, TCP_INFO, &out, &length), 0);
  return out;
}
int option_of(int fd, int name) {
  int out = -1;
  socklen_t length = sizeof out;
  EXPECT_EQ(::getsockopt(fd, IPPROTO_TCP, name, &out, &length), 0);
  return out;
}

constexpr const char* kHere = "10.9.0.1";
constexpr const char* kThere = "10.9.0.2";

Pair connected() {
  Pair pair = connect_from_here(kThere, Calls::kernels);
  EXPECT_TRUE(pair.here.is_on_ring());
  return pair;
}
Pair accepted() {
  Pair pair = accept_here(kHere, Calls::kernels);
  EXPECT_TRUE(pair.here.is_on_ring());
  return pair;
}

/// Questions of one byte, each answered by one byte.
void ask(const Pair& pair, int questions) {
  for (int i = 0; i < questions; ++i) {
    ASSERT_EQ(pair.there.send("?"), 1U);
    ASSERT_EQ(pair.here.receive(1), "?");
    ASSERT_EQ(pair.here.send("!"), 1U);
    ASSERT_EQ(pair.there.receive(1), "!");
  }
}

/// Returns how often a send found a byte of the peer that had just been sent.
int sends_that_found_a_byte(const Pair& pair, int sends) {
  const int on = 1;  // otherwise bytes wait for the acknowledgement of others
  EXPECT_EQ(raw_syscall(SYS_setsockopt, pair.there.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on), 0);
  EXPECT_EQ(::setsockopt(pair.here.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on), 0);
  int found = 0;
  for (int i = 0; i < sends; ++i) {
    const auto before = figures_of(pair.here).bytes_received;
    EXPECT_EQ(pair.there.send("a"), 1U);
    EXPECT_EQ(pair.here.send("b"), 1U);
    if (figures_of(pair.here).bytes_received > before) ++found;
  }
  return found;
}

std::string log_text() {
  const std::ifstream file(std::getenv("VMA_LOG_FILE"));
  std::ostringstream out;
  out << file.rdbuf();
  return out.str();
}

// -- none is set

TEST(Nothing, ConnectionsAreAsTheKernelsAre) {
  for (const Pair& pair : {connected(), accepted()}) {
    EXPECT_EQ(option_of(pair.here.fd(), TCP_NODELAY), 0);
    EXPECT_GT(figures_of_kernel(pair.there).first.tcpi_snd_mss, 1300U);
  }
}
TEST(Nothing, AcknowledgementsRideOnAnswers) {
  const Pair pair = connected();
  ask(pair, 200);
  EXPECT_LT(figures_of_kernel(pair.there).segments_in, 300U);
}
TEST(Nothing, EachSendLooksAtTheRing) { EXPECT_GT(sends_that_found_a_byte(connected(), 100), 50); }
TEST(MssAndNodelay, ANewSocketHasNoDelay) {
  const Pair one = connected(), other = accepted();
  EXPECT_EQ(option_of(one.here.fd(), TCP_NODELAY), 1);
  EXPECT_EQ(option_of(other.here.fd(), TCP_NODELAY), 1);
}
TEST(MssAndNodelay, AreListedAndAct) {
  const Pair pair = connected();
  EXPECT_THAT(log_text(), HasSubstr("[VMA_TCP_NODELAY]"));
  EXPECT_THAT(log_text(), HasSubstr("[VMA_MSS]"));
  EXPECT_THAT(log_text(), Not(HasSubstr("no effect here")));
}

// -- VMA_TCP_QUICKACK=1

TEST(QuickAck, EachSegmentIsAcknowledgedAtOnce) {
  const Pair pair = connected();
  ask(pair, 200);
  EXPECT_GE(figures_of_kernel(pair.there).segments_in, 400U);
}
TEST(QuickAck, UntilTheProgramSaysOtherwise) {
  const Pair pair = connected();
  const int off = 0;
  ASSERT_EQ(::setsockopt(pair.here.fd(), IPPROTO_TCP, TCP_QUICKACK, &off, sizeof off), 0);
  ask(pair, 200);
  EXPECT_LT(figures_of_kernel(pair.there).segments_in, 300U);
}

// -- VMA_TCP_CC_ALGO=0 VMA_TCP_MAX_SYN_RATE=5 VMA_TCP_3T_RULES=1 VMA_TCP_TIMESTAMP_OPTION=0

TEST(Others, CongestionControlIsOnTheKernelsSocketToo) {
  for (const Pair& pair : {connected(), accepted()}) {
    std::array<char, 16> name{};
    socklen_t length = name.size();
    ASSERT_EQ(::getsockopt(pair.here.fd(), IPPROTO_TCP, TCP_CONGESTION, name.data(), &length), 0);
    EXPECT_STREQ(name.data(), "reno");
  }
}
TEST(Others, AreNamed) {
  const Pair pair = connected();
  EXPECT_THAT(log_text(), HasSubstr("0 (LWIP)                   [VMA_TCP_CC_ALGO]\n"));
  EXPECT_THAT(log_text(),
              HasSubstr("no effect here: VMA_TCP_3T_RULES, VMA_TCP_MAX_SYN_RATE, VMA_TCP_TIMESTAMP_OPTION\n"));
}

}  // namespace
}  // namespace ringsock::vma_tests
