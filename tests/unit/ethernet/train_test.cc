#include "core/ethernet/train.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace ringsock::ethernet {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }
ibv_sge piece_of(const std::string& text) {
  return {reinterpret_cast<std::uintptr_t>(text.data()), static_cast<std::uint32_t>(text.size()), 0};
}
std::string text_of(const ibv_sge& piece) {
  return {reinterpret_cast<const char*>(piece.addr), piece.length};  // NOLINT(performance-no-int-to-ptr)
}

class Trains : public ::testing::Test {
 protected:
  void begin(const std::string& payload) {
    ASSERT_TRUE(train_.begin(bytes_of(kHeader), payload.size()));
    add(payload);
  }
  void add(const std::string& payload) {
    std::vector<ibv_sge> pieces{piece_of(payload)};
    train_.add(pieces);
  }
  const std::string kHeader = "headers of forty-two bytes, as of IPv4 ...";
  Train train_;
};

TEST_F(Trains, AreEmptyAtFirstAndTakeNothing) {
  EXPECT_EQ(train_.count(), 0U);
  EXPECT_FALSE(train_.takes(bytes_of(kHeader), 5));
}

TEST_F(Trains, TakeTheSameHeadersAndLengthOnly) {
  begin("first");
  EXPECT_TRUE(train_.takes(bytes_of(kHeader), 5));
  EXPECT_FALSE(train_.takes(bytes_of(kHeader), 4));
  std::string other = kHeader;
  other.back() = '?';
  EXPECT_FALSE(train_.takes(bytes_of(other), 5));
  EXPECT_FALSE(train_.takes(bytes_of(kHeader.substr(1)), 5));
}

TEST_F(Trains, OfOneAreAnOrdinaryFrame) {
  begin("first");
  Train::Request request;
  train_.describe(request);
  EXPECT_EQ(request.wr.opcode, IBV_WR_SEND);
  ASSERT_EQ(request.wr.num_sge, 2);
  EXPECT_EQ(text_of(request.wr.sg_list[0]) + text_of(request.wr.sg_list[1]), kHeader + "first");
}

TEST_F(Trains, OfSeveralAreToBeSegmented) {
  begin("first");
  std::vector<std::string> parts{"se", "", "ond"};
  std::vector<ibv_sge> pieces;
  for (const std::string& part : parts) pieces.push_back(piece_of(part));
  train_.add(pieces);
  Train::Request request;
  train_.describe(request);
  EXPECT_EQ(request.wr.opcode, IBV_WR_TSO);
  EXPECT_EQ(std::string_view(static_cast<const char*>(request.wr.tso.hdr), request.wr.tso.hdr_sz), kHeader);
  EXPECT_EQ(request.wr.tso.mss, 5);
  ASSERT_EQ(request.wr.num_sge, 1);
  EXPECT_EQ(text_of(request.wr.sg_list[0]), "firstseond");
}

TEST_F(Trains, EndWithTheirLastPlace) {
  begin("first");
  while (!train_.is_full()) add("other");
  EXPECT_EQ(train_.count(), Train::kMostDatagrams);
  EXPECT_FALSE(train_.takes(bytes_of(kHeader), 5));
}

TEST_F(Trains, EndWhereTheyAreTold) {
  train_.set_limit(4);
  begin("first");
  while (!train_.is_full()) add("other");
  EXPECT_EQ(train_.count(), 4U);
}

TEST_F(Trains, EndWhereAnIpPacketDoes) {
  const std::string payload(9000, 'x');
  begin(payload);
  while (!train_.is_full()) add(payload);
  EXPECT_EQ(train_.count(), 7U);
}

TEST_F(Trains, DoNotBeginWithWhatCannotBeSegmented) {
  EXPECT_FALSE(train_.begin(bytes_of(kHeader), 0));
  EXPECT_FALSE(train_.begin(bytes_of(kHeader), Train::kMostBytes + 1));
  EXPECT_FALSE(train_.begin(bytes_of(std::string(Train::kMostHeaderBytes + 1, 'h')), 5));
}

TEST_F(Trains, BeginAnew) {
  begin("first");
  train_.clear();
  EXPECT_FALSE(train_.takes(bytes_of(kHeader), 5));
  begin("another");
  Train::Request request;
  train_.describe(request);
  EXPECT_EQ(text_of(request.wr.sg_list[1]), "another");
}

}  // namespace
}  // namespace ringsock::ethernet
