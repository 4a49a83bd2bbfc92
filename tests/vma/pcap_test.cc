// The files of VMA_PCAP_FILE, which pcap_vma.sh sets together with VMA_TCP=on, as tcpdump(1) reads them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "tests/vma/far_socket.h"
#include "tests/vma/statistics_world.h"
#include "tests/vma/tcp_world.h"
#include "tests/vma/udp_world.h"

namespace ringsock::vma_tests {
namespace {

using ::testing::ContainsRegex;

/// What tcpdump reads in the files of all rings so far: a ring ends with its last user.
std::string as_tcpdump_reads(const std::string& filter) {
  return output_of("for file in $VMA_PCAP_FILE." + std::to_string(::getpid()) + ".*.pcap; do tcpdump -nn -r $file '" +
                   filter + "'; done");
}

class Pcap : public testing::Test {
 protected:
  void SetUp() override {
    if (std::system("tcpdump --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "tcpdump is not installed";
  }
};

TEST_F(Pcap, HasASegmentsBytesBothWays) {
  const Pair pair = connect_from_here("10.9.0.2", Calls::kernels);
  ASSERT_TRUE(pair.here.is_on_ring());
  ASSERT_EQ(pair.here.send("question"), 8U);
  ASSERT_EQ(pair.there.receive(8), "question");
  ASSERT_EQ(pair.there.send("the answer"), 10U);
  ASSERT_EQ(pair.here.receive(10), "the answer");
  EXPECT_THAT(as_tcpdump_reads("tcp"), ContainsRegex("IP 10.9.0.1.[0-9]+ > 10.9.0.2.[0-9]+: Flags .*, length 8"));
  EXPECT_THAT(as_tcpdump_reads("tcp"), ContainsRegex("IP 10.9.0.2.[0-9]+ > 10.9.0.1.[0-9]+: Flags .*, length 10"));
}

TEST_F(Pcap, HasDatagramsOfBurstsOneByOne) {
  Socket socket(AF_INET);
  socket.limit_waits();
  const Address here("10.9.0.1", 0), echo("10.9.0.2", kEchoPort);
  ASSERT_EQ(::bind(socket, here.get(), here.length()), 0);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(socket.send_to(echo, "hello"), 5);
    ASSERT_EQ(socket.receive(), "hello");
  }
  constexpr int kBurst = 100;
  for (int i = 0; i < kBurst; ++i) ASSERT_EQ(socket.send_to(echo, "burst!!"), 7);
  for (int i = 0; i < kBurst; ++i) ASSERT_EQ(socket.receive(), "burst!!");
  const std::string sent = as_tcpdump_reads("udp and src 10.9.0.1 and udp[4:2] == 15");
  EXPECT_EQ(std::count(sent.begin(), sent.end(), '>'), kBurst) << sent.substr(0, 1000);
}

}  // namespace
}  // namespace ringsock::vma_tests
