#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/statistics/statistics_file.h"
#include "libvmacompat/statistics/vma_page_reader.h"
#include "libvmacompat/statistics/vma_statistics.h"
#include "tests/support/child.h"

namespace ringsock::runtime {
namespace {

using ::testing::AllOf;
using testing::Child;
using ::testing::Field;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Count = VmaSocketCount;
using Level = VmaSocketLevel;

/// A page with a ring, an epoll set and two sockets, one of them gone, as a process would leave it; tests spoil it.
struct Page {
  static constexpr std::uint32_t kSockets = 2;
  Page() {
    header->magic = kVmaMagic;
    header->version = kVmaPageVersion;
    header->socket_slot_bytes = sizeof(VmaSocketSlot);
    header->ring_slot_bytes = sizeof(VmaRingSlot);
    header->pid = 7;
    header->sockets_used = kSockets;
    header->rings_used = 1;
    std::strcpy(header->program.data(), "story");
    header->pools[0].used = 1;
    header->pools[0].buffers = 1024;
    sockets[0].identity.fd = 3;
    sockets[0].identity.local = {{10, 0, 0, 1}, 0, 80, AF_INET};
    sockets[0][Count::rx_packets] = 5;
    sockets[1].identity.fd = -1;
    rings[0].used = 1;
    rings[0][VmaRingCount::rx_dropped] = 2;
    epoll_set().used = 1;
    epoll_set().epoll_fd = 9;
    epoll_set()[VmaIomuxCount::poll_hits] = 4;
  }
  [[nodiscard]] VmaIomuxSlot& epoll_set() const { return iomux[kVmaFirstEpollSlot]; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return memory; }
  [[nodiscard]] Result<VmaSnapshot> parse() const { return parse_vma_page(bytes()); }

  std::vector<std::byte> memory = std::vector<std::byte>(vma_page_bytes(kSockets));
  VmaPageHeader* header = new (memory.data()) VmaPageHeader{};
  VmaRingSlot* rings = new (memory.data() + kVmaHeaderBytes) VmaRingSlot[1]{};
  VmaIomuxSlot* iomux = new (memory.data() + kVmaIomuxOffset) VmaIomuxSlot[kVmaIomuxSlots]{};
  VmaSocketSlot* sockets = new (memory.data() + kVmaSocketsOffset) VmaSocketSlot[kSockets]{};
};

TEST(VmaPage, TellsWhatIsInUse) {
  const auto page = Page().parse();
  ASSERT_TRUE(page);
  EXPECT_EQ(page->program, "story");
  ASSERT_THAT(page->sockets, SizeIs(1));
  EXPECT_EQ(page->sockets[0].local.to_string(), "10.0.0.1:80");
  EXPECT_EQ(page->sockets[0].rx.packets, 5u);
  ASSERT_THAT(page->rings, SizeIs(1));
  EXPECT_EQ(page->cqs[0].packets_dropped, 2u);
  ASSERT_THAT(page->pools, SizeIs(1));
  EXPECT_EQ(page->pools[0].buffers, 1024u);
  ASSERT_THAT(page->iomux, SizeIs(1));
  EXPECT_EQ(page->iomux[0].name, "epoll[9]");
  EXPECT_EQ(page->iomux[0].poll_hits, 4u);
}

TEST(VmaPage, AThreadPollsAHundredPercentOfItsTimeAtMost) {
  const Page page;
  page.epoll_set().polling_percent = 42;
  EXPECT_EQ(page.parse()->iomux[0].polling_cpu_percent, 42u);
  page.epoll_set().polling_percent = 4'000'000'000;
  EXPECT_EQ(page.parse()->iomux[0].polling_cpu_percent, 100u);
}

TEST(VmaPage, CountsFromTheMarkOnUnlessTheSlotIsAnotherSocketsByNow) {
  const Page page;
  page.sockets[0].zero[static_cast<std::size_t>(Count::rx_packets)] = 2;
  EXPECT_EQ(page.parse()->sockets[0].rx.packets, 3u);
  page.sockets[0].zero[static_cast<std::size_t>(Count::rx_packets)] = 6;
  EXPECT_EQ(page.parse()->sockets[0].rx.packets, 5u);
}

TEST(VmaPage, TellsOfATcpConnectionWhatTheEngineKnows) {
  const Page page;
  VmaSocketSlot& slot = page.sockets[0];
  slot.identity.is_tcp = 1;
  slot[Level::tcp_state] = 8;
  slot[Level::tcp_rtt_us] = 250;
  slot[Level::tcp_cwnd] = 14'600;
  slot[Count::tx_time_outs] = 2;
  auto parsed = page.parse();
  EXPECT_EQ(parsed->sockets[0].tcp_state, "CLOSE_WAIT");
  EXPECT_EQ(parsed->sockets[0].tcp_rtt_us, 250u);
  EXPECT_EQ(parsed->sockets[0].tcp_cwnd, 14'600u);
  EXPECT_EQ(parsed->sockets[0].tx_time_outs, 2u);
  slot[Level::tcp_state] = ~std::uint64_t{};
  EXPECT_EQ(page.parse()->sockets[0].tcp_state, "") << "no state that there is";
}

TEST(VmaPage, SocketThatIsBeingChangedIsLeftOut) {
  const Page page;
  page.sockets[0].identity.begun = 1;
  const auto parsed = page.parse();
  ASSERT_TRUE(parsed);
  EXPECT_THAT(parsed->sockets, IsEmpty());
  EXPECT_EQ(parsed->unsettled, 1u);
}

TEST(VmaPage, NameIsMadePrintableAndEnds) {
  const Page page;
  page.header->program.fill('\x1b');
  EXPECT_EQ(page.parse()->program, std::string(page.header->program.size(), '?'));
}

TEST(VmaPage, EveryTruncationIsRefused) {
  const Page page;
  for (std::size_t length = 0; length < page.bytes().size(); length += 8)
    EXPECT_EQ(parse_vma_page(page.bytes().first(length)).error().code, EPROTO) << length;
}

struct Spoiled {
  const char* description;
  void (*spoil)(const Page&);
};
class SpoiledVmaPages : public ::testing::TestWithParam<Spoiled> {};
TEST_P(SpoiledVmaPages, AreRefused) {
  const Page page;
  GetParam().spoil(page);
  const auto parsed = page.parse();
  ASSERT_FALSE(parsed);
  EXPECT_EQ(parsed.error().code, EPROTO);
}
INSTANTIATE_TEST_SUITE_P(
    VmaPage, SpoiledVmaPages,
    ::testing::Values(Spoiled{"Magic", [](const Page& page) { page.header->magic[0] = 'X'; }},
                      Spoiled{"Version", [](const Page& page) { ++page.header->version; }},
                      Spoiled{"SocketSlots", [](const Page& page) { --page.header->socket_slot_bytes; }},
                      Spoiled{"RingSlots", [](const Page& page) { --page.header->ring_slot_bytes; }},
                      Spoiled{"MoreSocketsThanThereAre", [](const Page& page) { ++page.header->sockets_used; }},
                      Spoiled{"MoreSocketsThanThereCanBe", [](const Page& page) { page.header->sockets_used = ~0U; }},
                      Spoiled{"AnEpollSetWithoutDescriptor", [](const Page& page) { page.epoll_set().epoll_fd = -2; }},
                      Spoiled{"MoreRings", [](const Page& page) { page.header->rings_used = kVmaRings + 1; }},
                      Spoiled{"Descriptor", [](const Page& page) { page.sockets[0].identity.fd = -2; }},
                      Spoiled{"Flag", [](const Page& page) { page.sockets[0].identity.is_tcp = 2; }},
                      Spoiled{"Groups",
                              [](const Page& page) { page.sockets[0].identity.groups_used = kVmaGroups + 1; }},
                      Spoiled{"GroupsAddress",
                              [](const Page& page) {
                                page.sockets[0].identity.groups_used = 1;
                                page.sockets[0].identity.groups[0].family = 99;
                              }},
                      Spoiled{"Family", [](const Page& page) { page.sockets[0].identity.peer.family = 99; }}),
    [](const auto& info) { return info.param.description; });

// -- a living process's page

/// A directory for links, which goes with its owner.
struct LinkDirectory {
  LinkDirectory() { path = ::mkdtemp(text); }
  ~LinkDirectory() { std::filesystem::remove_all(path); }
  LinkDirectory(const LinkDirectory&) = delete;
  LinkDirectory& operator=(const LinkDirectory&) = delete;
  char text[32] = "/tmp/rs-vma-page-XXXXXX";
  std::string path;
};

/// A process with one socket that has received a datagram; ends when told.
Child start_process(const std::string& directory, const std::function<void()>& then = {}) {
  return Child::start([=](testing::Channel& parent) {
    vma_statistics.configure(directory, 2);
    VmaSocketStatistics socket;
    socket.describe({.fd = 3, .local = SocketAddress::v4(0x0a000001, 80)});
    socket.count(Count::rx_packets);
    socket.raise(Level::ready_packets_max, 9);
    const auto asked = vma_statistics.asked_fd();
    if (!asked) return 2;
    parent.send(1);
    if (then) then();
    pollfd both[2]{{*asked, POLLIN, 0}, {parent.fd(), POLLIN, 0}};
    while (::poll(both, 2, -1) > 0 && both[1].revents == 0) {
      const auto what = vma_statistics.take_asked();
      if (!what) continue;
      vma_statistics.show_pool(0, true, 100 + static_cast<std::uint64_t>(what->dump_fd + what->log_level), 0);
      vma_statistics.answer(what->number);
    }
    vma_statistics.at_exit();
    return 0;
  });
}

Result<VmaPage> only_page_in(const std::string& directory, bool may_ask = true) {
  const auto links = find_vma_pages(directory.c_str(), false);
  if (links.size() != 1) return Error{ENOENT, "links"};
  return VmaPage::open(links[0].name.c_str(), may_ask);
}

TEST(VmaProcess, ShowsItsSocketsByALinkThatGoesWithIt) {
  const LinkDirectory directory;
  Child process = start_process(directory.path);
  ASSERT_TRUE(process.channel().receive<int>());

  const auto page = only_page_in(directory.path, false);
  ASSERT_TRUE(page) << page.error().where;
  const auto now = page->read();
  ASSERT_TRUE(now) << now.error().where;
  EXPECT_EQ(now->pid, process.pid());
  ASSERT_THAT(now->sockets, SizeIs(1));
  EXPECT_EQ(now->sockets[0].rx.packets, 1u);
  EXPECT_THAT(read_all_vma_pages(), ::testing::Contains(Field(&VmaSnapshot::pid, process.pid())));

  process.channel().send(1);
  EXPECT_EQ(process.wait(), 0);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path));
}

TEST(VmaProcess, DoesWhatItIsAskedFor) {
  const LinkDirectory directory;
  Child process = start_process(directory.path);
  ASSERT_TRUE(process.channel().receive<int>());
  const auto page = only_page_in(directory.path);
  ASSERT_TRUE(page);

  ASSERT_TRUE(page->ask({.log_level = config::VmaLogLevel::debug, .dump_fd = 3}, std::chrono::seconds(10)));
  EXPECT_EQ(page->read()->pools.at(0).buffers, 100u + 3 + 5);
  // Asked once, done once.
  ASSERT_TRUE(page->ask({}, std::chrono::seconds(10)));
  EXPECT_EQ(page->read()->pools.at(0).buffers, 100u + 2 * static_cast<std::uint64_t>(kVmaUnchanged));
}

TEST(VmaProcess, CountsAnewForAllWhoLook) {
  const LinkDirectory directory;
  Child process = start_process(directory.path);
  ASSERT_TRUE(process.channel().receive<int>());
  const auto page = only_page_in(directory.path);
  ASSERT_TRUE(page);
  ASSERT_EQ(page->read()->sockets.at(0).ready_packets_max, 9u);

  ASSERT_TRUE(page->zero());

  const auto now = page->read();
  EXPECT_EQ(now->sockets.at(0).rx.packets, 0u);
  EXPECT_EQ(now->sockets.at(0).ready_packets_max, 0u);
  EXPECT_EQ(only_page_in(directory.path, false)->read()->sockets.at(0).rx.packets, 0u);
}

TEST(VmaProcess, OneThatStandsStillIsShownAndDoesNotAnswer) {
  const LinkDirectory directory;
  Child process = start_process(directory.path);
  ASSERT_TRUE(process.channel().receive<int>());
  process.kill(SIGSTOP);
  ASSERT_EQ(::waitpid(process.pid(), nullptr, WUNTRACED), process.pid());
  const auto page = only_page_in(directory.path);
  ASSERT_TRUE(page);
  EXPECT_EQ(page->ask({}, std::chrono::milliseconds(20)).error().code, ETIMEDOUT);
  EXPECT_THAT(page->read()->sockets, SizeIs(1));
}

TEST(VmaProcess, SocketsBeyondTheSlotsCountForThemselves) {
  const LinkDirectory directory;
  Child process = Child::start([&](testing::Channel&) {
    vma_statistics.configure(directory.path, 1);
    VmaSocketStatistics shown, alone;
    shown.describe({.fd = 3});
    alone.describe({.fd = 4});
    alone.count(Count::tx_packets);
    const auto all = vma_statistics.snapshot();
    const bool right =
        all && all->sockets.size() == 1 && all->sockets[0].fd == 3 && snapshot_of(alone.slot())->tx.packets == 1;
    vma_statistics.at_exit();
    return right ? 0 : 1;
  });
  EXPECT_EQ(process.wait(), 0);
}

TEST(VmaProcess, AForkedChildHasItsOwnPageOnceItMakesASocket) {
  const LinkDirectory directory;
  Child process = Child::start([&](testing::Channel&) {
    vma_statistics.configure(directory.path, 4);
    VmaSocketStatistics socket;
    socket.describe({.fd = 3});
    socket.count(Count::tx_packets, 5);
    const pid_t child = ::fork();
    if (child == 0) {
      if (!vma_statistics.path().empty()) ::_exit(1);
      socket.count(Count::tx_packets);
      VmaSocketStatistics another;
      another.describe({.fd = 4});
      const auto all = vma_statistics.snapshot();
      const bool right = all && all->pid == ::getpid() && all->sockets.size() == 2 && all->sockets[0].tx.packets == 1 &&
                         find_vma_pages(directory.path.c_str(), false).size() == 2;
      vma_statistics.at_exit();
      ::_exit(right ? 0 : 2);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    const bool right = snapshot_of(socket.slot())->tx.packets == 5;
    vma_statistics.at_exit();
    return right ? WEXITSTATUS(status) : 3;
  });
  EXPECT_EQ(process.wait(), 0);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path));
}

TEST(VmaProcess, WhatADeadProcessLeftIsRemovedWhenWanted) {
  const LinkDirectory directory;
  Child process = start_process(directory.path);
  ASSERT_TRUE(process.channel().receive<int>());
  const auto links = find_vma_pages(directory.path.c_str(), false);
  ASSERT_THAT(links, SizeIs(1));
  process.kill(SIGKILL);
  process.wait();

  EXPECT_THAT(find_vma_pages(directory.path.c_str(), false), IsEmpty());
  EXPECT_FALSE(std::filesystem::is_empty(directory.path)) << "kept";
  EXPECT_THAT(find_vma_pages(directory.path.c_str(), true), IsEmpty());
  EXPECT_TRUE(std::filesystem::is_empty(directory.path));
  EXPECT_FALSE(std::filesystem::exists("/dev/shm/" + links[0].name));
}

TEST(VmaLinks, OnesThatLeadElsewhereAreNotFollowed) {
  const LinkDirectory directory;
  const std::string pid = std::to_string(::getpid());
  const std::string link = directory.path + "/vmastat." + pid;
  const auto name = [&](const std::string& number) {
    return std::string(kVmaPagePrefix) + std::to_string(::geteuid()) + "." + std::to_string(own_pid_namespace()) + "." +
           number + ".abcdef";
  };
  const std::string another_process = "/dev/shm/" + name("1");
  for (const std::string& target : {std::string("/etc/passwd"), another_process, "/dev/shm/../etc/" + name(pid),
                                    "/dev/shm/x" + name(pid), std::string("/dev/shm/ringsock.1.2.3.abcdef")}) {
    ASSERT_EQ(::symlink(target.c_str(), link.c_str()), 0);
    EXPECT_THAT(find_vma_pages(directory.path.c_str(), false), IsEmpty()) << target;
    ::unlink(link.c_str());
  }
  // No file: what one is told of it when it is opened.
  ASSERT_EQ(::symlink(("/dev/shm/" + name(pid)).c_str(), link.c_str()), 0);
  const auto links = find_vma_pages(directory.path.c_str(), false);
  ASSERT_THAT(links, SizeIs(1));
  EXPECT_EQ(VmaPage::open(links[0].name.c_str(), false).error().code, ENOENT);
}

TEST(VmaLinks, AFileThatIsInNobodysMemoryIsNoPage) {
  auto file = create_statistics_file(4096, kVmaPagePrefix);
  ASSERT_TRUE(file);
  const std::string name = std::filesystem::path(file->path.data()).filename();
  EXPECT_EQ(VmaPage::open(name.c_str(), false).error().code, EBUSY) << "it may be about to be mapped";
  ASSERT_EQ(::ftruncate(file->fd.get(), 4096), 0);
  EXPECT_EQ(VmaPage::open(name.c_str(), false).error().code, ESRCH);
  ::unlink(file->path.data());
}

}  // namespace
}  // namespace ringsock::runtime
