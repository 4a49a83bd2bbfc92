#include "core/device/shm/cm/cm_wire.h"

#include <gtest/gtest.h>

#include <vector>

namespace ringsock::soft {
namespace {

using verbs::PortSpace;

std::vector<std::byte> bytes_of(std::size_t count) {
  std::vector<std::byte> out;
  for (std::size_t i = 0; i < count; ++i) out.push_back(static_cast<std::byte>(i + 1));
  return out;
}

ConnectRequest request_with(std::size_t private_bytes) {
  ConnectRequest out;
  out.space = PortSpace::tcp;
  out.source = SocketAddress::v4(INADDR_LOOPBACK, 40000);
  out.destination = SocketAddress::v6(in6addr_loopback, 80);
  out.offer.inbox = {4096, 8192, 4096, 64, 4096};
  out.offer.spare = {12288, 8192, 0, 64, 4096};
  out.offer.qp_num = 77;
  out.offer.flags = kOfferHasMemfd;
  out.parameters.responder_resources = 3;
  out.parameters.initiator_depth = 5;
  out.parameters.rnr_retry_count = 6;
  out.parameters.qkey = 99;
  EXPECT_TRUE(out.private_data.assign(bytes_of(private_bytes), verbs::kMaxRequestPrivateData));
  return out;
}

ConnectReply reply_with(std::size_t private_bytes) {
  ConnectReply out;
  out.from_listening_process = true;
  out.offer.qp_num = 78;
  EXPECT_TRUE(out.private_data.assign(bytes_of(private_bytes), verbs::kMaxReplyPrivateData));
  return out;
}

/// Every shorter packet, and one that is longer, is refused.
template <class Parse>
void expect_exact_length(std::span<const std::byte> packet, Parse parse) {
  for (std::size_t size = 0; size < packet.size(); ++size) {
    auto parsed = parse(packet.first(size));
    ASSERT_FALSE(parsed) << size;
    EXPECT_EQ(parsed.error().code, EPROTO) << size;
  }
  std::vector<std::byte> longer(packet.begin(), packet.end());
  longer.push_back(std::byte{0});
  EXPECT_FALSE(parse(std::span<const std::byte>(longer)));
}

TEST(CmWire, ARequestArrivesAsItWasSent) {
  const auto sent = request_with(56);
  const auto got = parse_request(encode_request(sent).view());
  ASSERT_TRUE(got);
  EXPECT_EQ(got->space, sent.space);
  EXPECT_EQ(got->source, sent.source);
  EXPECT_EQ(got->destination, sent.destination);
  EXPECT_EQ(std::memcmp(&got->offer, &sent.offer, sizeof sent.offer), 0);
  EXPECT_EQ(got->parameters.rnr_retry_count, 6);
  EXPECT_EQ(got->parameters.qkey, 99u);
  EXPECT_EQ(std::vector(got->private_data.view().begin(), got->private_data.view().end()), bytes_of(56));
}

TEST(CmWire, WhatOneSideStartsTheOtherAnswers) {
  const auto got = parse_request(encode_request(request_with(0)).view());
  ASSERT_TRUE(got);
  EXPECT_EQ(got->parameters.responder_resources, 5);
  EXPECT_EQ(got->parameters.initiator_depth, 3);
}

TEST(CmWire, AReplyAndARejectArriveAsTheyWereSent) {
  const auto reply = parse_reply(encode_reply(reply_with(196)).view());
  ASSERT_TRUE(reply);
  EXPECT_TRUE(reply->from_listening_process);
  EXPECT_EQ(reply->offer.qp_num, 78u);
  EXPECT_EQ(reply->private_data.size, 196u);

  PrivateData data;
  ASSERT_TRUE(data.assign(bytes_of(148), verbs::kMaxRejectPrivateData));
  const auto reject = parse_reject(encode_reject(data).view());
  ASSERT_TRUE(reject);
  EXPECT_EQ(std::vector(reject->view().begin(), reject->view().end()), bytes_of(148));
}

TEST(CmWire, EveryTruncationIsRefused) {
  expect_exact_length(encode_request(request_with(0)).view(), parse_request);
  expect_exact_length(encode_request(request_with(56)).view(), parse_request);
  expect_exact_length(encode_reply(reply_with(196)).view(), parse_reply);
  PrivateData data;
  ASSERT_TRUE(data.assign(bytes_of(3), verbs::kMaxRejectPrivateData));
  expect_exact_length(encode_reject(data).view(), parse_reject);
}

TEST(CmWire, AnotherVersionIsNotSupported) {
  EncodedPacket packet = encode_request(request_with(0));
  packet.bytes[0] ^= std::byte{2};
  EXPECT_EQ(parse_request(packet.view()).error().code, ENOTSUP);
  EXPECT_EQ(parse_reply(packet.view()).error().code, ENOTSUP);
  EXPECT_EQ(parse_reject(packet.view()).error().code, ENOTSUP);
}

TEST(CmWire, ARequestWithMoreThan56BytesOfPrivateDataIsRefused) {
  ConnectRequest request = request_with(56);
  request.private_data.size = 57;
  EXPECT_EQ(parse_request(encode_request(request).view()).error().code, EPROTO);
}

TEST(CmWire, AnAddressThatNobodyCanHaveIsRefused) {
  for (const auto& address : {SocketAddress::wildcard(AF_INET, 1), SocketAddress::wildcard(AF_INET6, 1),
                              SocketAddress::v4(INADDR_LOOPBACK, 0), SocketAddress::v4(INADDR_LOOPBACK, 1).mapped()}) {
    ConnectRequest request = request_with(0);
    request.source = address;
    EXPECT_FALSE(parse_request(encode_request(request).view())) << address.to_string();
    request = request_with(0);
    request.destination = address;
    EXPECT_FALSE(parse_request(encode_request(request).view())) << address.to_string();
  }
}

TEST(PrivateData, LongerThanTheLimitIsInvalid) {
  PrivateData data;
  EXPECT_EQ(data.assign(bytes_of(57), verbs::kMaxRequestPrivateData).error().code, EINVAL);
  EXPECT_EQ(data.assign(bytes_of(300), 400).error().code, EINVAL);
}

}  // namespace
}  // namespace ringsock::soft
