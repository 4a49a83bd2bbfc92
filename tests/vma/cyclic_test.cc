// Cyclic buffers of VMA's Extra API. Runs beside the echo service (two_hosts.sh), with libvma; cyclic_vma.sh sets the
// variables, once for the table of VMA 9.3.0 and later, and once for that of 8.8.2 to 9.2.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mellanox/vma_extra.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/support/bad_memory.h"
#include "tests/vma/far_socket.h"
#include "tests/vma/udp_world.h"

namespace ringsock::vma_tests {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::size_t kNetworkHeaders = 14 + 20 + 8;

bool is_older_table() {
  const char* const layout = std::getenv("VMA_EXTRA_API_LAYOUT");
  return layout != nullptr && layout == std::string_view("8.9");
}

/// What both tables have.
struct Api {
  decltype(vma_api_t::vma_cyclic_buffer_read) read;
  decltype(vma_api_t::get_mem_info) memory;
  decltype(vma_api_t::vma_add_ring_profile) add_profile;
  decltype(vma_api_t::get_socket_rings_fds) rings;
  std::uint64_t mask;
  int cyclic_type, external_type;
};

Api api() {
  if (!is_older_table()) {
    const vma_api_t& now = *vma_get_api();
    return {now.vma_cyclic_buffer_read,   now.get_mem_info,       now.vma_add_ring_profile, now.get_socket_rings_fds,
            now.vma_extra_supported_mask, VMA_RING_CYCLIC_BUFFER, VMA_RING_EXTERNAL_MEM};
  }
  const auto& older = *reinterpret_cast<const vma_api_8_9_t*>(vma_get_api());
  return {older.vma_cyclic_buffer_read,
          older.get_mem_info,
          older.vma_add_ring_profile,
          older.get_socket_rings_fds,
          older.vma_extra_supported_mask,
          1,
          2};
}

template <class Call>
int error_of(Call call) {
  errno = 0;
  return call() == -1 ? errno : 0;
}

vma_ring_type_attr profile_of(vma_cyclic_buffer_ring_attr wish) {
  vma_ring_type_attr out{};
  out.ring_type = static_cast<vma_ring_type>(api().cyclic_type);
  out.ring_cyclicb = wish;
  return out;
}

/// A read that has succeeded.
struct Batch : vma_completion_cb_t {
  Batch() : vma_completion_cb_t{} {}
  /// The first bytes of each stride.
  [[nodiscard]] Texts texts(std::size_t bytes, std::size_t from = 0) const {
    Texts out;
    const std::size_t stride = packets == 0 ? 0 : payload_length / packets;
    for (std::size_t i = 0; i < packets; ++i)
      out.emplace_back(static_cast<const char*>(payload_ptr) + i * stride + from, bytes);
    return out;
  }
};

/// A socket of this host with a ring and a buffer of its own, and a sender on the other host.
class Cyclic : public ::testing::Test {
 protected:
  static constexpr vma_cyclic_buffer_ring_attr kPayloads{
      .comp_mask = 0, .num = 8, .stride_bytes = 4, .hdr_bytes = 0, .packet_receive_mode = STRIP_NETWORK_HDRS};

  Cyclic() { socket_.limit_waits(); }
  int choose(int key) {
    const vma_ring_alloc_logic_attr wish{
        .comp_mask = VMA_RING_ALLOC_MASK_RING_PROFILE_KEY | VMA_RING_ALLOC_MASK_RING_INGRESS,
        .ring_alloc_logic = RING_LOGIC_PER_SOCKET,
        .ring_profile_key = static_cast<std::uint32_t>(key),
        .user_id = 0,
        .ingress = 1,
        .engress = 0,
        .reserved = 0};
    return error_of([&] { return ::setsockopt(socket_, SOL_SOCKET, SO_VMA_RING_ALLOC_LOGIC, &wish, sizeof wish); });
  }
  int key_of(const vma_cyclic_buffer_ring_attr& wish) {
    vma_ring_type_attr profile = profile_of(wish);
    int key = -1;
    EXPECT_EQ(api().add_profile(&profile, &key), 0) << std::strerror(errno);
    return key;
  }
  void begin(const vma_cyclic_buffer_ring_attr& wish) {
    ASSERT_EQ(choose(key_of(wish)), 0);
    bind_here();
  }
  void bind_here() {
    const Address here("10.9.0.1", 0);
    ASSERT_EQ(::bind(socket_, here.get(), here.length()), 0) << std::strerror(errno);
  }
  void send(const std::string& text) {
    ASSERT_EQ(far_.send(socket_.name(), text), static_cast<long>(text.size())) << std::strerror(errno);
  }
  void send_numbers(int first, int count) {
    for (int i = first; i < first + count; ++i) send(std::to_string(1000 + i));
  }
  Batch read(std::size_t least, std::size_t most, int flags = 0) {
    Batch out;
    EXPECT_EQ(api().read(socket_, &out, least, most, flags), 0) << std::strerror(errno);
    return out;
  }
  int ring() {
    int out = -1;
    EXPECT_EQ(api().rings(socket_, &out, 1), 1);
    return out;
  }

  Socket socket_{AF_INET};
  FarSocket far_{"10.9.0.2"};
};

// -- what is read

TEST_F(Cyclic, TheCapabilitiesAreThere) {
  EXPECT_NE(api().mask & VMA_EXTRA_API_CYCLIC_BUFFER_READ, 0U);
  EXPECT_NE(api().mask & VMA_EXTRA_API_GET_MEM_INFO, 0U);
  EXPECT_EQ((api().mask & VMA_EXTRA_API_IOCTL) != 0, !is_older_table());
}

TEST_F(Cyclic, DatagramsLieInARowInOrder) {
  begin(kPayloads);
  send_numbers(0, 3);
  const Batch batch = read(3, 8);
  EXPECT_EQ(batch.packets, 3U);
  EXPECT_EQ(batch.payload_length, 12U);
  EXPECT_EQ(batch.usr_hdr_ptr, nullptr);
  EXPECT_EQ(batch.comp_mask, 0U) << "nobody has asked for the time";
  EXPECT_THAT(batch.texts(4), ElementsAre("1000", "1001", "1002"));
}

TEST_F(Cyclic, AReadReturnsNoMoreThanWanted) {
  begin(kPayloads);
  send_numbers(0, 5);
  EXPECT_THAT(read(2, 2).texts(4), ElementsAre("1000", "1001"));
  EXPECT_THAT(read(1, 2).texts(4), ElementsAre("1002", "1003"));
  EXPECT_THAT(read(1, 2).texts(4), ElementsAre("1004"));
}

TEST_F(Cyclic, FramesAreWholeInRawMode) {
  begin({.comp_mask = 0, .num = 4, .stride_bytes = 64, .hdr_bytes = 0, .packet_receive_mode = RAW_PACKET});
  send("data");
  const Batch batch = read(1, 4);
  ASSERT_EQ(batch.packets, 1U);
  EXPECT_EQ(batch.payload_length, 64U);
  const auto* const frame = static_cast<const unsigned char*>(batch.payload_ptr);
  EXPECT_EQ(frame[12], 0x08);
  EXPECT_EQ(frame[13], 0x00) << "IPv4";
  EXPECT_EQ(frame[14] >> 4, 4);
  EXPECT_EQ(frame[36] * 256 + frame[37], socket_.name().port());
  EXPECT_THAT(batch.texts(4, kNetworkHeaders), ElementsAre("data"));
}

TEST_F(Cyclic, PaddedFramesEndWithZeros) {
  begin({.comp_mask = 0, .num = 2, .stride_bytes = 48, .hdr_bytes = 0, .packet_receive_mode = PADDED_PACKET});
  send("abcdef");
  send("ghijkl");
  ASSERT_EQ(read(2, 2).packets, 2U);
  send("x");
  send("y");
  EXPECT_THAT(read(2, 2).texts(6, kNetworkHeaders),
              ElementsAre(std::string("x\0\0\0\0\0", 6), std::string("y\0\0\0\0\0", 6)));
}

TEST_F(Cyclic, HeadersOfTheApplicationAreSeparated) {
  begin({.comp_mask = VMA_CB_HDR_BYTE,
         .num = 4,
         .stride_bytes = 4,
         .hdr_bytes = 2,
         .packet_receive_mode = STRIP_NETWORK_HDRS});
  send("h1data");
  send("h2more");
  const Batch batch = read(2, 4);
  EXPECT_THAT(batch.texts(4), ElementsAre("data", "more"));
  ASSERT_EQ(batch.usr_hdr_ptr_length, 4U);
  EXPECT_EQ(std::string(static_cast<const char*>(batch.usr_hdr_ptr), 4), "h1h2");
}

TEST_F(Cyclic, NetworkHeadersAreSeparated) {
  begin({.comp_mask = VMA_CB_HDR_BYTE,
         .num = 4,
         .stride_bytes = 4,
         .hdr_bytes = 2,
         .packet_receive_mode = SEPERATE_NETWORK_HDRS});
  send("h1data");
  send("h2more");
  const Batch batch = read(2, 4);
  EXPECT_THAT(batch.texts(4), ElementsAre("data", "more"));
  ASSERT_EQ(batch.usr_hdr_ptr_length, 2 * (kNetworkHeaders + 2));
  const auto* const second = static_cast<const unsigned char*>(batch.usr_hdr_ptr) + kNetworkHeaders + 2;
  EXPECT_EQ(second[36] * 256 + second[37], socket_.name().port());
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(second) + kNetworkHeaders, 2), "h2");
}

TEST_F(Cyclic, TheTimeOfArrivalIsToldToThoseWhoAsk) {
  begin(kPayloads);
  Batch batch;
  batch.comp_mask = VMA_CB_MASK_TIMESTAMP;
  ASSERT_EQ(api().read(socket_, &batch, 0, 1, MSG_DONTWAIT), 0);
  send("time");
  batch.comp_mask = VMA_CB_MASK_TIMESTAMP;
  ASSERT_EQ(api().read(socket_, &batch, 1, 1, 0), 0);
  EXPECT_EQ(batch.comp_mask, static_cast<std::uint32_t>(VMA_CB_MASK_TIMESTAMP));
  EXPECT_GT(batch.hw_timestamp.tv_sec, 1'500'000'000);
}

// -- the end of the buffer

TEST_F(Cyclic, ARowEndsWithTheBufferAndTheNextReadBeginsAnew) {
  begin(kPayloads);
  send_numbers(0, 6);
  const Batch first = read(6, 6);
  EXPECT_EQ(first.packets, 6U);
  send_numbers(6, 2);
  const Batch end = read(4, 4);
  EXPECT_THAT(end.texts(4), ElementsAre("1006", "1007")) << "fewer than the least: there are no more before the end";
  send_numbers(8, 4);
  const Batch again = read(4, 4);
  EXPECT_EQ(again.payload_ptr, first.payload_ptr);
  EXPECT_THAT(again.texts(4), ElementsAre("1008", "1009", "1010", "1011"));
}

TEST_F(Cyclic, WhatAReadHasReturnedStaysUntilTheNextOne) {
  begin(kPayloads);
  send_numbers(0, 8);
  const Batch held = read(8, 8);
  send_numbers(8, 8);  // they wait in the ring or are dropped, but overwrite nothing
  std::array<pollfd, 1> one{{{socket_, POLLIN, 0}}};
  ::poll(one.data(), 1, 0);
  EXPECT_THAT(held.texts(4), ElementsAre("1000", "1001", "1002", "1003", "1004", "1005", "1006", "1007"));
}

TEST_F(Cyclic, ThousandsGoRoundWithoutALoss) {
  begin({.comp_mask = 0, .num = 100, .stride_bytes = 8, .hdr_bytes = 0, .packet_receive_mode = STRIP_NETWORK_HDRS});
  std::size_t next = 0;
  for (int round = 0; round < 200; ++round) {
    for (std::size_t i = 0; i < 30; ++i) send(std::to_string(10'000'000 + next + i));
    for (std::size_t left = 30; left > 0;) {
      const Batch batch = read(1, left);
      for (const std::string& text : batch.texts(8)) ASSERT_EQ(text, std::to_string(10'000'000 + next++));
      ASSERT_NE(batch.packets, 0U);
      left -= batch.packets;
    }
  }
}

TEST_F(Cyclic, ADatagramLongerThanAStrideIsDropped) {
  begin(kPayloads);
  send("longer");
  send("fits");
  EXPECT_THAT(read(1, 8).texts(4), ElementsAre("fits"));
}

// -- waiting

TEST_F(Cyclic, WithoutWaitingFewerThanTheLeastAreNone) {
  begin(kPayloads);
  send_numbers(0, 2);
  Batch batch = read(3, 8, MSG_DONTWAIT);
  EXPECT_EQ(batch.packets, 0U);
  EXPECT_EQ(batch.payload_ptr, nullptr);
  send_numbers(2, 1);
  EXPECT_THAT(read(3, 8).texts(4), ElementsAre("1000", "1001", "1002"));
  EXPECT_EQ(read(0, 8).packets, 0U) << "the least is none";
}

TEST_F(Cyclic, AReadWaitsForTheLeastNumber) {
  begin(kPayloads);
  std::thread later([&] {
    send_numbers(0, 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    send_numbers(1, 2);
  });
  EXPECT_THAT(read(3, 8).texts(4), ElementsAre("1000", "1001", "1002"));
  later.join();
}

TEST_F(Cyclic, AReadEndsWithTheTimeLimit) {
  begin(kPayloads);
  socket_.limit_waits(20);
  Batch batch;
  EXPECT_EQ(error_of([&] { return api().read(socket_, &batch, 1, 8, 0); }), EAGAIN);
}

TEST_F(Cyclic, PollAndEpollTellOfUnreadDatagrams) {
  begin(kPayloads);
  const int set = ::epoll_create1(0);
  epoll_event event{.events = EPOLLIN, .data = {}};
  ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, socket_, &event), 0);
  pollfd one{socket_, POLLIN, 0}, of_ring{ring(), POLLIN, 0};
  EXPECT_EQ(::poll(&one, 1, 0), 0);
  send_numbers(0, 2);
  EXPECT_EQ(::epoll_wait(set, &event, 1, 30'000), 1);
  EXPECT_EQ(::poll(&one, 1, 30'000), 1);
  EXPECT_EQ(::poll(&of_ring, 1, 30'000), 1);
  EXPECT_EQ(read(2, 2).packets, 2U);
  EXPECT_EQ(::poll(&one, 1, 0), 0);
  EXPECT_EQ(::poll(&of_ring, 1, 0), 0);
  EXPECT_EQ(::epoll_wait(set, &event, 1, 0), 0);
  ::close(set);
}

TEST_F(Cyclic, TheRingNamesTheSocketToo) {
  begin(kPayloads);
  send_numbers(0, 2);
  Batch batch;
  ASSERT_EQ(api().read(ring(), &batch, 2, 2, 0), 0) << std::strerror(errno);
  EXPECT_THAT(batch.texts(4), ElementsAre("1000", "1001"));
}

TEST_F(Cyclic, RecvfromGetsNothingOfTheRings) {
  begin(kPayloads);
  send_numbers(0, 1);
  EXPECT_EQ(read(1, 1).packets, 1U);
  send_numbers(1, 1);
  EXPECT_THAT(all_of(socket_), IsEmpty());
  EXPECT_THAT(read(1, 1).texts(4), ElementsAre("1001"));
}

// -- memory

TEST_F(Cyclic, TheMemoryIsToldAndRegistered) {
  begin(kPayloads);
  void* address = nullptr;
  std::size_t length = 0;
  std::uint32_t key = 0;
  ASSERT_EQ(api().memory(socket_, &address, &length, &key), 0) << std::strerror(errno);
  EXPECT_EQ(length, 8U * 4);
  void* of_ring = nullptr;
  std::uint32_t again = 0;
  ASSERT_EQ(api().memory(ring(), &of_ring, &length, &again), 0);
  EXPECT_EQ(of_ring, address);
  EXPECT_EQ(again, key);
  send_numbers(0, 1);
  EXPECT_EQ(read(1, 1).payload_ptr, address);
}

TEST_F(Cyclic, TheApplicationMayProvideTheMemory) {
  std::array<char, 64> own{};
  const iovec memory{own.data(), own.size()};
  vma_cyclic_buffer_ring_attr wish = kPayloads;
  wish.comp_mask = VMA_CB_EXTERNAL_MEM;
  const int key = key_of(wish);
  EXPECT_EQ(choose(key), EINVAL) << "there is no memory";
  ASSERT_EQ(::setsockopt(socket_, SOL_SOCKET, SO_VMA_RING_USER_MEMORY, &memory, sizeof memory), 0);
  ASSERT_EQ(choose(key), 0);
  bind_here();
  send_numbers(0, 2);
  EXPECT_EQ(read(2, 2).payload_ptr, own.data());
  EXPECT_EQ(std::string(own.data(), 8), "10001001");
}

TEST_F(Cyclic, LittleMemoryOfTheApplicationIsRefused) {
  std::array<char, 31> own{};
  const iovec memory{own.data(), own.size()};
  vma_cyclic_buffer_ring_attr wish = kPayloads;
  wish.comp_mask = VMA_CB_EXTERNAL_MEM;
  ASSERT_EQ(::setsockopt(socket_, SOL_SOCKET, SO_VMA_RING_USER_MEMORY, &memory, sizeof memory), 0);
  EXPECT_EQ(choose(key_of(wish)), EINVAL);
}

// -- bad arguments

TEST_F(Cyclic, ProfilesThatMakeNoSenseAreRefused) {
  const auto error = [](const vma_cyclic_buffer_ring_attr& wish) {
    vma_ring_type_attr profile = profile_of(wish);
    int key = -1;
    return error_of([&] { return api().add_profile(&profile, &key); });
  };
  EXPECT_EQ(error({0, 0, 4, 0, RAW_PACKET}), EINVAL) << "no packets";
  EXPECT_EQ(error({0, 8, 0, 0, RAW_PACKET}), EINVAL) << "no stride";
  EXPECT_EQ(error({4, 8, 4, 0, RAW_PACKET}), EINVAL) << "an unknown bit";
  EXPECT_EQ(error({VMA_CB_HDR_BYTE, 8, 64, 2, RAW_PACKET}), EINVAL) << "headers stay in whole frames";
  EXPECT_EQ(error({0, UINT32_MAX, UINT16_MAX, 0, RAW_PACKET}), ENOMEM);
  vma_ring_type_attr external{};
  external.ring_type = static_cast<vma_ring_type>(api().external_type);
  int key = -1;
  EXPECT_EQ(error_of([&] { return api().add_profile(&external, &key); }), EOPNOTSUPP);
  external.ring_type = static_cast<vma_ring_type>(3);
  EXPECT_EQ(error_of([&] { return api().add_profile(&external, &key); }), EINVAL);
}

TEST_F(Cyclic, AnUnknownModeIsRefused) {
  vma_ring_type_attr profile = profile_of({0, 8, 4, 0, RAW_PACKET});
  constexpr std::uint32_t kUnknown = 4;  // no value of the enumeration, so only its bytes can be written
  std::memcpy(&profile.ring_cyclicb.packet_receive_mode, &kUnknown, sizeof kUnknown);
  int key = -1;
  EXPECT_EQ(error_of([&] { return api().add_profile(&profile, &key); }), EINVAL);
}

TEST_F(Cyclic, OfOtherProfilesTwelveBytesAreRead) {
  const BadMemory bad;
  auto* const packet = at<vma_ring_type_attr>(bad.last(12));
  std::memset(static_cast<void*>(packet), 0, 12);
  int key = -1;
  EXPECT_EQ(api().add_profile(packet, &key), 0);
  const int cyclic = api().cyclic_type;
  std::memcpy(reinterpret_cast<char*>(packet) + 4, &cyclic, sizeof cyclic);
  EXPECT_EFAULT(api().add_profile(packet, &key));
}

TEST_F(Cyclic, EqualProfilesHaveOneKey) {
  EXPECT_EQ(key_of(kPayloads), key_of(kPayloads));
  vma_cyclic_buffer_ring_attr other = kPayloads;
  other.num = 9;
  EXPECT_NE(key_of(kPayloads), key_of(other));
}

TEST_F(Cyclic, BadArgumentsOfReadsAreRefused) {
  begin(kPayloads);
  Batch batch;
  const auto error = [&](std::size_t least, std::size_t most, int flags) {
    return error_of([&] { return api().read(socket_, &batch, least, most, flags); });
  };
  EXPECT_EQ(error(1, 0, MSG_DONTWAIT), EINVAL);
  EXPECT_EQ(error(0, 0, MSG_DONTWAIT), EINVAL);
  EXPECT_EQ(error(2, 1, MSG_DONTWAIT), EINVAL);
  EXPECT_EQ(error(1, 1, MSG_WAITALL), EOPNOTSUPP);
  EXPECT_EQ(error(1, 1, MSG_PEEK), EOPNOTSUPP);
  EXPECT_EQ(error(1, SIZE_MAX, MSG_DONTWAIT), 0);
  EXPECT_EQ(error_of([&] { return api().read(socket_, nullptr, 1, 1, MSG_DONTWAIT); }), EINVAL);
  const BadMemory bad;
  for (char* const place : bad.unwritable()) {
    if (place != nullptr) EXPECT_EFAULT(api().read(socket_, at<vma_completion_cb_t>(place), 1, 1, MSG_DONTWAIT));
  }
}

TEST_F(Cyclic, OtherDescriptorsHaveNoCyclicBuffer) {
  Batch batch;
  void* address = nullptr;
  std::size_t length = 0;
  std::uint32_t key = 0;
  bind_here();
  const Socket tcp(AF_INET6);
  const int of_ring = ring();
  for (const auto& [fd, error] : std::vector<std::pair<int, int>>{
           {socket_, EOPNOTSUPP}, {of_ring, EOPNOTSUPP}, {0, EINVAL}, {-1, EINVAL}, {1'000'000, EINVAL}}) {
    EXPECT_EQ(error_of([&, fd = fd] { return api().read(fd, &batch, 1, 1, MSG_DONTWAIT); }), error) << fd;
    EXPECT_EQ(error_of([&, fd = fd] { return api().memory(fd, &address, &length, &key); }), error) << fd;
  }
  EXPECT_EQ(error_of([&] { return api().memory(socket_, nullptr, &length, &key); }), EINVAL);
  EXPECT_EQ(error_of([&] { return api().memory(socket_, &address, nullptr, &key); }), EINVAL);
  EXPECT_EQ(error_of([&] { return api().memory(socket_, &address, &length, nullptr); }), EINVAL);
  const BadMemory bad;
  EXPECT_EFAULT(api().memory(socket_, at<void*>(bad.constant()), &length, &key));
}

TEST_F(Cyclic, BeforeTheSocketHasARingThereIsNothing) {
  ASSERT_EQ(choose(key_of(kPayloads)), 0);
  EXPECT_EQ(read(1, 8, MSG_DONTWAIT).packets, 0U);
  void* address = nullptr;
  std::size_t length = 0;
  std::uint32_t key = 0;
  EXPECT_EQ(error_of([&] { return api().memory(socket_, &address, &length, &key); }), ENODATA);
}

TEST_F(Cyclic, AForkedChildHasNoBufferAndTheParentsGoesOn) {
  begin(kPayloads);
  send_numbers(0, 2);
  EXPECT_EQ(read(1, 1).packets, 1U);
  if (const pid_t child = ::fork(); child == 0) {
    Batch batch;
    const int error = error_of([&] { return api().read(socket_, &batch, 1, 1, MSG_DONTWAIT); });
    ::_exit(error == EOPNOTSUPP ? 0 : 1);
  } else {
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_THAT(read(1, 1).texts(4), ElementsAre("1001"));
}

}  // namespace
}  // namespace ringsock::vma_tests
