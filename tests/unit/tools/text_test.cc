#include "tools/text.h"

#include <gtest/gtest.h>

#include <vector>

#include "tools/pattern.h"

namespace ringsock::tools {
namespace {

// What rdmacm-utils 44 prints for the same numbers.
TEST(SizeText, IsCutToUnitsOf1024) {
  EXPECT_EQ(size_text(0), "0");
  EXPECT_EQ(size_text(1000), "1000");
  EXPECT_EQ(size_text(1025), "1k");
  EXPECT_EQ(size_text(1536), "1.5k");
  EXPECT_EQ(size_text(12'800'000), "12m");
  EXPECT_EQ(size_text(1 << 20), "1m");
  EXPECT_EQ(size_text(1'048'576'000), "1000m");
  EXPECT_EQ(size_text(1'572'864'000), "1.4g");
  EXPECT_EQ(size_text(std::uint64_t{5} << 40), "5120g");
}

TEST(CountText, IsCutToUnitsOf1000) {
  EXPECT_EQ(count_text(999), "999");
  EXPECT_EQ(count_text(1500), "1k");
  EXPECT_EQ(count_text(100'000), "100k");
  EXPECT_EQ(count_text(2'000'000), "2m");
  EXPECT_EQ(count_text(3'000'000'000), "3b");
}

TEST(ParseNumber, TakesNumbersWithinTheBoundsAndNothingElse) {
  EXPECT_EQ(parse_number("7", 1, 10), 7u);
  EXPECT_EQ(parse_number("0", 1, 10), std::nullopt);
  EXPECT_EQ(parse_number("11", 1, 10), std::nullopt);
  EXPECT_EQ(parse_number("-1", 0, 10), std::nullopt);
  EXPECT_EQ(parse_number("7k", 1, 10), std::nullopt);
  EXPECT_EQ(parse_number("", 0, 10), std::nullopt);
  EXPECT_EQ(parse_number("99999999999999999999", 0, UINT64_MAX), std::nullopt);
}

TEST(Means, TakesTheBeginningOfTheWordInAnyCase) {
  EXPECT_TRUE(means("v", "verify"));
  EXPECT_TRUE(means("Verify", "verify"));
  EXPECT_FALSE(means("verifying", "verify"));
  EXPECT_FALSE(means("x", "verify"));
  EXPECT_FALSE(means("", "verify"));
}

TEST(Pattern, RunsOnFromBufferToBuffer) {
  Pattern sender;
  Pattern receiver;
  for (const std::size_t size : {16u, 300u, 1u, 0u, 5000u}) {
    std::vector<std::byte> buffer(size);
    sender.fill(buffer);
    EXPECT_TRUE(receiver.verify(buffer));
  }
}

TEST(Pattern, NoticesOneWrongByte) {
  std::vector<std::byte> buffer(1000);
  Pattern().fill(buffer);
  EXPECT_EQ(buffer[257], std::byte{1});
  EXPECT_TRUE(Pattern().verify(buffer));
  buffer[999] ^= std::byte{1};
  EXPECT_EQ(Pattern().verify(buffer).error().code, EBADMSG);
}

}  // namespace
}  // namespace ringsock::tools
