#include "core/ethernet/packet_capture.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "core/wire/ethernet_frame.h"
#include "core/wire/ip.h"
#include "core/wire/udp.h"

namespace ringsock::ethernet {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// A directory that a test has for itself.
class Place {
 public:
  Place() { EXPECT_NE(::mkdtemp(path_.data()), nullptr); }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  ~Place() { std::filesystem::remove_all(path_); }
  [[nodiscard]] std::string file(const char* name) const { return path_ + "/" + name; }

 private:
  std::string path_ = "/tmp/capture-XXXXXX";
};

std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::uint32_t word_at(const std::string& bytes, std::size_t offset) {
  std::uint32_t out = 0;
  if (offset + sizeof out <= bytes.size()) std::memcpy(&out, bytes.data() + offset, sizeof out);
  return out;
}

constexpr std::size_t kFileHeader = 24, kRecordHeader = 16;

/// The packets of a file, which ends with the last one.
std::vector<std::string> packets_of(const std::string& path) {
  const std::string all = contents(path);
  std::vector<std::string> out;
  std::size_t at = kFileHeader;
  while (at + kRecordHeader <= all.size()) {
    const std::size_t bytes = word_at(all, at + 8);
    EXPECT_EQ(word_at(all, at + 12), bytes);
    at += kRecordHeader;
    out.push_back(all.substr(at, bytes));
    at += bytes;
  }
  EXPECT_EQ(at, all.size());
  return out;
}

iovec part_of(const std::string& text) { return {const_cast<char*>(text.data()), text.size()}; }
std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

TEST(PacketCapture, IsAPcapFileOfEthernetPacketsForItsOwnerOnly) {
  const Place place;
  std::atomic<std::uint64_t> left{10'000};
  const auto capture = PacketCapture::create(place.file("a"), left);
  ASSERT_NE(capture, nullptr);
  const std::string one = "payload", two = " in parts";
  const std::array parts{part_of(one), part_of(two)};
  capture->note(bytes_of("headers,"), parts);
  capture->note(bytes_of("second"), {});

  const std::string all = contents(place.file("a"));
  EXPECT_EQ(word_at(all, 0), 0xa1b23c4d) << "nanoseconds";
  EXPECT_EQ(word_at(all, 4), 2U | 4U << 16) << "version 2.4";
  EXPECT_EQ(word_at(all, 20), 1U) << "Ethernet";
  EXPECT_THAT(packets_of(place.file("a")), ElementsAre(std::string("headers,payload in parts"), "second"));
  struct stat status {};
  ASSERT_EQ(::stat(place.file("a").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600U);
}

TEST(PacketCapture, NeitherReplacesAFileNorFollowsALink) {
  const Place place;
  std::atomic<std::uint64_t> left{10'000};
  std::ofstream(place.file("there")) << "mine";
  EXPECT_EQ(PacketCapture::create(place.file("there"), left), nullptr);
  EXPECT_EQ(contents(place.file("there")), "mine");
  ASSERT_EQ(::symlink(place.file("elsewhere").c_str(), place.file("link").c_str()), 0);
  EXPECT_EQ(PacketCapture::create(place.file("link"), left), nullptr);
  EXPECT_FALSE(std::filesystem::exists(place.file("elsewhere")));
}

TEST(PacketCapture, EndsWithAWholePacketWhenTheBytesAreUsedUp) {
  const Place place;
  std::atomic<std::uint64_t> left{kFileHeader + 2 * (kRecordHeader + 4)};
  const auto first = PacketCapture::create(place.file("a"), left);
  first->note(bytes_of("1234"), {});
  first->note(bytes_of("12345"), {});
  first->note(bytes_of("1234"), {});
  EXPECT_THAT(packets_of(place.file("a")), ElementsAre("1234")) << "it is over with the first that does not fit";
  EXPECT_EQ(PacketCapture::create(place.file("b"), left), nullptr) << "all files together";
}

TEST(PacketCapture, DoesNotWriteIntoAFileThatTheProgramOpensInItsPlace) {
  const Place place;
  std::atomic<std::uint64_t> left{10'000};
  const auto capture = PacketCapture::create(place.file("a"), left);
  // As a program does that closes whatever it finds.
  int number = -1;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code none;
    if (std::filesystem::read_symlink(entry, none) == place.file("a")) number = std::stoi(entry.path().filename());
  }
  ASSERT_GE(number, 0);
  const int programs = ::open(place.file("programs").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(::dup3(programs, number, O_CLOEXEC), number);
  ::close(programs);
  capture->note(bytes_of("1234"), {});
  EXPECT_THAT(contents(place.file("programs")), IsEmpty());
}

/// Headers up to UDP, IPv4, with lengths that do not matter.
std::string udp_headers(std::uint8_t protocol) {
  wire::EthernetHeader ethernet{};
  ethernet.type = wire::Be16(0x0800);
  wire::Ipv4Header ip{};
  ip.version_and_words = 0x45;
  ip.protocol = protocol;
  const wire::UdpHeader udp{};
  std::string out(sizeof ethernet + sizeof ip + sizeof udp, '\0');
  std::memcpy(out.data(), &ethernet, sizeof ethernet);
  std::memcpy(out.data() + sizeof ethernet, &ip, sizeof ip);
  return out;
}

TEST(PacketCapture, ShowsDatagramsThatLeaveTogetherOneByOne) {
  const Place place;
  std::atomic<std::uint64_t> left{10'000};
  const auto capture = PacketCapture::create(place.file("a"), left);
  const std::string first = "aaab", rest = "bbcc";
  const std::array parts{part_of(first), part_of(rest)};
  capture->note_segments(bytes_of(udp_headers(wire::kIpProtocolUdp)), parts, 3);

  const auto packets = packets_of(place.file("a"));
  ASSERT_EQ(packets.size(), 3U);
  EXPECT_EQ(packets[0].substr(42), "aaa");
  EXPECT_EQ(packets[1].substr(42), "bbb");
  EXPECT_EQ(packets[2].substr(42), "cc");
  EXPECT_EQ(packets[2][17], 20 + 8 + 2) << "bytes of IP";
  EXPECT_EQ(packets[2][39], 8 + 2) << "bytes of UDP";
}

TEST(PacketCapture, ShowsTcpSegmentsThatLeaveTogetherAsOnePacket) {
  const Place place;
  std::atomic<std::uint64_t> left{10'000};
  const auto capture = PacketCapture::create(place.file("a"), left);
  const std::string data = "aaabbb";
  const iovec part = part_of(data);
  capture->note_segments(bytes_of(udp_headers(wire::kIpProtocolTcp)), std::span(&part, 1), 3);
  const auto packets = packets_of(place.file("a"));
  ASSERT_EQ(packets.size(), 1U);
  EXPECT_EQ(packets[0].substr(42), data);
}

}  // namespace
}  // namespace ringsock::ethernet
