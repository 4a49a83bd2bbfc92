// What control data and options say of datagrams to be sent.
#include <ctime>
//
#include <linux/errqueue.h>  // needs <ctime>
#include <net/if.h>
#include <netinet/udp.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "tests/vma/udp_fixture.h"

namespace ringsock::vma_tests {
namespace {

class Sending : public Udp {
 protected:
  [[nodiscard]] bool is_v4() const { return GetParam().family == AF_INET; }
  [[nodiscard]] const char* second_address() const { return is_v4() ? "10.9.0.3" : "fd09::3"; }

  /// To the echo service, with one item of control data.
  template <class Value>
  ssize_t send_with(int level, int type, const Value& value, const std::string& data) {
    return socket_.send_with(echo_, level, type, value, data);
  }
  ssize_t send_from(const char* address, int ifindex, const std::string& data) {
    if (is_v4()) {
      in_pktinfo info{ifindex, {::inet_addr(address)}, {}};
      return send_with(IPPROTO_IP, IP_PKTINFO, info, data);
    }
    in6_pktinfo info{};
    ::inet_pton(AF_INET6, address, &info.ipi6_addr);
    info.ipi6_ifindex = static_cast<unsigned>(ifindex);
    return send_with(IPPROTO_IPV6, IPV6_PKTINFO, info, data);
  }
  /// Where an answer was sent to.
  std::string destination_of_answer() {
    Message answer;
    if (answer.receive(socket_) < 0) return "(nothing)";
    char text[INET6_ADDRSTRLEN]{};
    if (is_v4()) {
      const auto info = answer.value<in_pktinfo>(IPPROTO_IP, IP_PKTINFO);
      return ::inet_ntop(AF_INET, &info.ipi_addr, text, sizeof text);
    }
    const auto info = answer.value<in6_pktinfo>(IPPROTO_IPV6, IPV6_PKTINFO);
    return ::inet_ntop(AF_INET6, &info.ipi6_addr, text, sizeof text);
  }
  void want_destinations() {
    if (is_v4()) {
      socket_.set(IPPROTO_IP, IP_PKTINFO, 1);
    } else {
      socket_.set(IPPROTO_IPV6, IPV6_RECVPKTINFO, 1);
    }
  }
  std::string headers_now() {
    EXPECT_EQ(socket_.send_to(echo_, "headers?"), 8);
    return socket_.receive();
  }
};
INSTANTIATE_TEST_SUITE_P(Over, Sending, both_versions(), name_of_version);

TEST_P(Sending, ADummySendSendsNothing) {
  if (!preloaded()) GTEST_SKIP() << "the kernel does not know the flag";
  constexpr int kDummySend = 0x400;
  bind_anywhere(socket_);
  until_rings_send(socket_);
  EXPECT_EQ(::sendto(socket_, "dummy", 5, kDummySend, echo_.get(), echo_.length()), 5) << std::strerror(errno);
  ASSERT_EQ(socket_.send_to(echo_, "real"), 4);
  EXPECT_EQ(socket_.receive(), "real");
}

TEST_P(Sending, ADatagramMayHaveAnotherSource) {
  bind_anywhere(socket_);
  want_destinations();
  get_acquainted(socket_);
  const int eth0 = static_cast<int>(::if_nametoindex("eth0"));
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(send_from(second_address(), i % 2 ? eth0 : 0, "second"), 6) << std::strerror(errno);
    EXPECT_EQ(destination_of_answer(), second_address());
    ASSERT_EQ(send_from(GetParam().here, 0, "first"), 5) << std::strerror(errno);
    EXPECT_EQ(destination_of_answer(), GetParam().here);
    ASSERT_EQ(socket_.send_to(echo_, "as you like"), 11);
    EXPECT_EQ(destination_of_answer(), GetParam().here);
  }
}

TEST_P(Sending, ASourceThatIsNotOursIsRefused) {
  bind_anywhere(socket_);
  get_acquainted(socket_);
  EXPECT_EQ(send_from(is_v4() ? "10.9.0.99" : "fd09::99", 0, "spoofed"), -1);
  EXPECT_EQ(errno, is_v4() ? ENETUNREACH : EINVAL);
}

TEST_P(Sending, HopLimitAndClassOfTheSocketAndOfOneDatagram) {
  bind_anywhere(socket_);
  get_acquainted(socket_);
  EXPECT_EQ(headers_now(), "hops 64, class 0");
  if (is_v4()) {
    socket_.set(IPPROTO_IP, IP_TTL, 9);
    socket_.set(IPPROTO_IP, IP_TOS, 0x20);
  } else {
    socket_.set(IPPROTO_IPV6, IPV6_UNICAST_HOPS, 9);
    socket_.set(IPPROTO_IPV6, IPV6_TCLASS, 0x20);
  }
  EXPECT_EQ(headers_now(), "hops 9, class 32");
  ASSERT_EQ(send_with(is_v4() ? IPPROTO_IP : IPPROTO_IPV6, is_v4() ? IP_TTL : IPV6_HOPLIMIT, 7, "headers?"), 8);
  EXPECT_EQ(socket_.receive(), "hops 7, class 32");
  ASSERT_EQ(send_with(is_v4() ? IPPROTO_IP : IPPROTO_IPV6, is_v4() ? IP_TOS : IPV6_TCLASS, 0x48, "headers?"), 8);
  EXPECT_EQ(socket_.receive(), "hops 9, class 72");
  EXPECT_EQ(headers_now(), "hops 9, class 32");
  EXPECT_EQ(send_with(is_v4() ? IPPROTO_IP : IPPROTO_IPV6, is_v4() ? IP_TTL : IPV6_HOPLIMIT, 256, "headers?"), -1);
  EXPECT_EQ(errno, EINVAL);
}

TEST_P(Sending, AnIPv6SocketSendsToIPv4WithIPv4sOptions) {
  if (is_v4()) GTEST_SKIP() << "of IPv6 sockets";
  const Address echo("::ffff:10.9.0.2", kEchoPort);
  echo_ = echo;
  bind_anywhere(socket_);
  get_acquainted(socket_);
  socket_.set(IPPROTO_IPV6, IPV6_TCLASS, 0x20);
  socket_.set(IPPROTO_IP, IP_TTL, 9);
  EXPECT_EQ(headers_now(), "hops 9, class 0");
  ASSERT_EQ(send_with(IPPROTO_IP, IP_TOS, 0x48, "headers?"), 8) << std::strerror(errno);
  EXPECT_EQ(socket_.receive(), "hops 9, class 72");
}

TEST_P(Sending, RingsCarryThatAllToo) {
  if (!preloaded()) GTEST_SKIP() << "without libvma the kernel carries all";
  bind_anywhere(socket_);
  until_rings_send(socket_);
  const long before = kernels_sent_datagrams(GetParam().family);
  ASSERT_GE(before, 0);
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(send_from(second_address(), 0, "second"), 6);
    ASSERT_EQ(socket_.receive(), "second");
    ASSERT_EQ(send_with(is_v4() ? IPPROTO_IP : IPPROTO_IPV6, is_v4() ? IP_TTL : IPV6_HOPLIMIT, 7, "hops"), 4);
    ASSERT_EQ(socket_.receive(), "hops");
    ASSERT_EQ(send_with(IPPROTO_UDP, UDP_SEGMENT, std::uint16_t{4}, "cut off"), 7);
    ASSERT_EQ(socket_.receive(), "cut ");
    ASSERT_EQ(socket_.receive(), "off");
  }
  if (is_v4()) socket_.set(IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DONT);
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(socket_.send_to(echo_, "may be cut"), 10);
    ASSERT_EQ(socket_.receive(), "may be cut");
  }
  EXPECT_LT(kernels_sent_datagrams(GetParam().family) - before, 5);
}

// -- segments

std::string pattern(std::size_t size) {
  std::string data(size, '\0');
  for (std::size_t i = 0; i < size; ++i) data[i] = static_cast<char>(i / 251 + i);
  return data;
}

/// Five datagrams that were one send.
void expect_segments(const Socket& socket, const std::string& data) {
  for (std::size_t at = 0; at < data.size(); at += 1200) {
    EXPECT_EQ(socket.receive(), data.substr(at, 1200)) << at << ": " << std::strerror(errno);
  }
}

TEST_P(Sending, OneSendIsCutIntoDatagrams) {
  bind_anywhere(socket_);
  get_acquainted(socket_);
  const std::string data = pattern(5000);
  ASSERT_EQ(send_with(IPPROTO_UDP, UDP_SEGMENT, std::uint16_t{1200}, data), 5000) << std::strerror(errno);
  expect_segments(socket_, data);
  socket_.set(IPPROTO_UDP, UDP_SEGMENT, 1200);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(socket_.send_to(echo_, data), 5000) << std::strerror(errno);
    expect_segments(socket_, data);
    ASSERT_EQ(socket_.send_to(echo_, "short"), 5);
    EXPECT_EQ(socket_.receive(), "short");
  }
  const std::string exact = pattern(2400);
  ASSERT_EQ(socket_.send_to(echo_, exact), 2400);
  expect_segments(socket_, exact);
  // Control data may say otherwise.
  ASSERT_EQ(send_with(IPPROTO_UDP, UDP_SEGMENT, std::uint16_t{0}, data), 5000) << std::strerror(errno);
  EXPECT_EQ(socket_.receive(), data);
  socket_.set(IPPROTO_UDP, UDP_SEGMENT, 0);
  ASSERT_EQ(socket_.send_to(echo_, data), 5000);
  EXPECT_EQ(socket_.receive(), data) << "whole again";
}

TEST_P(Sending, ASegmentThatFitsIntoNoPacketIsRefused) {
  bind_anywhere(socket_);
  get_acquainted(socket_);
  socket_.set(IPPROTO_UDP, UDP_SEGMENT, 1600);
  EXPECT_EQ(socket_.send_to(echo_, pattern(5000)), -1);
  EXPECT_TRUE(errno == EINVAL || errno == EMSGSIZE) << std::strerror(errno);
}

TEST_P(Sending, WhatIsPutTogetherTellsItsPieces) {
  bind_anywhere(socket_);
  get_acquainted(socket_);
  socket_.set(IPPROTO_UDP, UDP_GRO, 1);
  socket_.set(IPPROTO_UDP, UDP_SEGMENT, 1000);
  const std::string data = pattern(4500);
  ASSERT_EQ(socket_.send_to(echo_, data), 4500);
  std::string all;
  while (all.size() < data.size()) {
    Message message;
    const ssize_t got = message.receive(socket_);
    ASSERT_GT(got, 0) << std::strerror(errno);
    if (got > 1000) {
      EXPECT_EQ(message.value<int>(IPPROTO_UDP, UDP_GRO), 1000);
    }
    all += message.text(got);
  }
  EXPECT_EQ(all, data);
}

// -- the rest

TEST_P(Sending, MoreIsOneDatagramInTheEnd) {
  bind_anywhere(socket_);
  get_acquainted(socket_);
  ASSERT_EQ(::sendto(socket_, "ab", 2, MSG_MORE, echo_.get(), echo_.length()), 2);
  ASSERT_EQ(::sendto(socket_, "cd", 2, MSG_MORE, echo_.get(), echo_.length()), 2);
  ASSERT_EQ(socket_.send_to(echo_, "ef"), 2);
  ASSERT_EQ(socket_.send_to(echo_, "gh"), 2);
  EXPECT_EQ(socket_.receive(), "abcdef");
  EXPECT_EQ(socket_.receive(), "gh");
}

TEST_P(Sending, ACorkedSocketGathersOneDatagram) {
  bind_anywhere(socket_);
  get_acquainted(socket_);
  socket_.set(IPPROTO_UDP, UDP_CORK, 1);
  ASSERT_EQ(socket_.send_to(echo_, "ab"), 2);
  ASSERT_EQ(socket_.send_to(echo_, "cd"), 2);
  EXPECT_EQ(socket_.receive(nullptr, MSG_DONTWAIT), "");
  socket_.set(IPPROTO_UDP, UDP_CORK, 0);
  EXPECT_EQ(socket_.receive(), "abcd");
}

TEST_P(Sending, FragmentsOnlyWhereTheyAreAllowed) {
  bind_anywhere(socket_);
  get_acquainted(socket_);
  const int level = is_v4() ? IPPROTO_IP : IPPROTO_IPV6, option = is_v4() ? IP_MTU_DISCOVER : IPV6_MTU_DISCOVER;
  const std::string large = pattern(3000);
  socket_.set(level, option, is_v4() ? IP_PMTUDISC_DO : IPV6_PMTUDISC_DO);
  EXPECT_EQ(socket_.send_to(echo_, large), -1);
  EXPECT_EQ(errno, EMSGSIZE);
  ASSERT_EQ(socket_.send_to(echo_, "small"), 5);
  EXPECT_EQ(socket_.receive(), "small");
  for (const int way : {IP_PMTUDISC_DONT, IP_PMTUDISC_OMIT}) {
    socket_.set(level, option, way);
    ASSERT_EQ(socket_.send_to(echo_, large), 3000);
    EXPECT_EQ(socket_.receive(), large);
    ASSERT_EQ(socket_.send_to(echo_, "small"), 5);
    EXPECT_EQ(socket_.receive(), "small");
  }
}

TEST_P(Sending, TheErrorQueueTellsWhoRefused) {
  bind_anywhere(socket_);
  get_acquainted(socket_);
  socket_.set(is_v4() ? IPPROTO_IP : IPPROTO_IPV6, is_v4() ? IP_RECVERR : IPV6_RECVERR, 1);
  const Address nobody(GetParam().there, 7001);
  pollfd entry{socket_, 0, 0};
  int refused = 0;
  // A busy host may lose an error, or send none (RFC 4443, 2.4).
  for (int tries = 0; refused == 0 && tries < 20; ++tries) {
    ASSERT_EQ(socket_.send_to(nobody, "anybody?"), 8);
    refused = ::poll(&entry, 1, 500);
  }
  ASSERT_EQ(refused, 1);
  EXPECT_EQ(entry.revents & POLLERR, POLLERR);
  Message message(MSG_ERRQUEUE);
  Address about;
  message.header.msg_name = about.get();
  message.header.msg_namelen = about.length();
  EXPECT_EQ(message.text(message.receive(socket_)), "anybody?");
  EXPECT_EQ(about.port(), 7001);
  const auto error =
      message.value<sock_extended_err>(is_v4() ? IPPROTO_IP : IPPROTO_IPV6, is_v4() ? IP_RECVERR : IPV6_RECVERR);
  EXPECT_EQ(error.ee_errno, static_cast<unsigned>(ECONNREFUSED));
  EXPECT_EQ(error.ee_origin, is_v4() ? SO_EE_ORIGIN_ICMP : SO_EE_ORIGIN_ICMP6);
}

TEST_P(Sending, WhoOnlySendsHearsOfTheRefusal) {
  get_acquainted(socket_);  // so that rings send
  const Address nobody(GetParam().there, 7001);
  ASSERT_EQ(::connect(socket_, nobody.get(), nobody.length()), 0);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(::send(socket_, "anybody?", 8, 0), 8) << std::strerror(errno);
    ssize_t sent = 8;
    for (int tries = 0; sent == 8 && tries < 100; ++tries) {
      // It does something else meanwhile: a program that waits by poll(2) or recv(2) does not only send.
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      sent = ::send(socket_, "anybody?", 8, 0);
    }
    EXPECT_EQ(sent, -1);
    EXPECT_EQ(errno, ECONNREFUSED);
  }
}

TEST_P(Sending, AThreadThatIsCancelledEndsThereAndOthersGoOn) {
  if (preloaded()) until_rings_send(socket_);
  bool went_on = false;
  std::thread([&] {
    ::pthread_cancel(::pthread_self());
    socket_.send_to(echo_, "never");
    went_on = true;
  }).join();
  EXPECT_FALSE(went_on);
  ASSERT_EQ(socket_.send_to(echo_, "hello"), 5);
  EXPECT_EQ(socket_.receive(), "hello");
}

TEST_P(Sending, WhatFoundNoRoomIsCounted) {
  bind_anywhere(socket_);
  get_acquainted(socket_);
  socket_.set(SOL_SOCKET, SO_RXQ_OVFL, 1);
  socket_.set(SOL_SOCKET, SO_RCVBUF, 4096);
  Socket other(GetParam().family);
  other.limit_waits();
  get_acquainted(other);
  const std::string data = pattern(1000);
  constexpr unsigned kSent = 200;
  for (unsigned i = 0; i < kSent; ++i) {
    ASSERT_EQ(socket_.send_to(echo_, data), 1000);
    if (i % 10 == 9) {  // the service must not lose any
      ASSERT_EQ(other.send_to(echo_, "done?"), 5);
      ASSERT_EQ(other.receive(), "done?");
    }
  }
  unsigned received = 0;
  for (int i = 0; i < 1000; ++i) received += socket_.receive(nullptr, MSG_DONTWAIT).size() == 1000;
  EXPECT_GT(received, 0U);
  EXPECT_LT(received, kSent);
  ASSERT_EQ(socket_.send_to(echo_, "and now?"), 8);
  Message last;
  ASSERT_EQ(last.receive(socket_), 8) << std::strerror(errno);
  EXPECT_EQ(last.value<std::uint32_t>(SOL_SOCKET, SO_RXQ_OVFL) + received, kSent);
}

}  // namespace
}  // namespace ringsock::vma_tests
