#include "core/statistics/statistics_reader.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/unique_fd.h"
#include "core/statistics/statistics_file.h"

namespace ringsock::runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// A page with two slots, as a process would leave it; tests spoil it.
struct Page {
  Page() {
    header->magic = kStatisticsMagic;
    header->version = kStatisticsVersion;
    header->slot_bytes = sizeof(SocketSlot);
    header->pid = static_cast<std::uint32_t>(::getpid());
    header->slots_used = 2;
    std::strcpy(header->program.data(), "story");
    slots[0].identity.state = SocketState::listening;
    slots[0].identity.descriptor = 3;
    slots[0].counters.bytes_in = 5;
  }
  [[nodiscard]] std::span<const std::byte> bytes() const { return memory; }
  Result<ProcessSnapshot> parse() const { return parse_statistics_page(bytes()); }

  std::vector<std::byte> memory = std::vector<std::byte>(kPageHeaderBytes + 2 * sizeof(SocketSlot));
  PageHeader* header = new (memory.data()) PageHeader{};
  SocketSlot* slots = new (memory.data() + kPageHeaderBytes) SocketSlot[2]{};
};

TEST(StatisticsPage, TellsSocketsInUse) {
  const auto page = Page().parse();
  ASSERT_TRUE(page);
  EXPECT_EQ(page->program, "story");
  ASSERT_THAT(page->sockets, SizeIs(1));
  EXPECT_EQ(page->sockets[0].description.state, SocketState::listening);
  EXPECT_EQ(page->total.bytes_in, 5u);
}

TEST(StatisticsPage, SocketThatIsBeingChangedIsLeftOut) {
  const Page page;
  page.slots[0].identity.begun = 1;
  const auto parsed = page.parse();
  ASSERT_TRUE(parsed);
  EXPECT_THAT(parsed->sockets, IsEmpty());
  EXPECT_EQ(parsed->unsettled, 1u);
}

TEST(StatisticsPage, NameIsMadePrintableAndEnds) {
  const Page page;
  page.header->program.fill('\x1b');
  const auto parsed = page.parse();
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->program, std::string(page.header->program.size(), '?'));
}

TEST(StatisticsPage, EveryTruncationIsRefused) {
  const Page page;
  for (std::size_t length = 0; length < page.bytes().size(); length += 8) {
    EXPECT_EQ(parse_statistics_page(page.bytes().first(length)).error().code, EPROTO) << length;
  }
}

struct Spoiled {
  const char* description;
  void (*spoil)(const Page&);
};
class SpoiledPages : public testing::TestWithParam<Spoiled> {};
TEST_P(SpoiledPages, AreRefused) {
  const Page page;
  GetParam().spoil(page);
  const auto parsed = page.parse();
  ASSERT_FALSE(parsed);
  EXPECT_EQ(parsed.error().code, EPROTO);
}
INSTANTIATE_TEST_SUITE_P(
    StatisticsPage, SpoiledPages,
    testing::Values(
        Spoiled{"Magic", [](const Page& page) { page.header->magic[0] = 'X'; }},
        Spoiled{"Version", [](const Page& page) { ++page.header->version; }},
        Spoiled{"SlotSize", [](const Page& page) { page.header->slot_bytes = 0; }},
        Spoiled{"MoreSlotsThanBytes", [](const Page& page) { page.header->slots_used = 3; }},
        Spoiled{"MoreSlotsThanThereCanBe", [](const Page& page) { page.header->slots_used = ~0U; }},
        Spoiled{"State", [](const Page& page) { page.slots[0].identity.state = static_cast<SocketState>(200); }},
        Spoiled{"Path", [](const Page& page) { page.slots[0].identity.path = static_cast<SocketPath>(200); }},
        Spoiled{"Family", [](const Page& page) { page.slots[0].identity.peer.family = AF_UNIX; }},
        Spoiled{"Descriptor", [](const Page& page) { page.slots[0].identity.descriptor = -2; }}),
    [](const auto& info) { return info.param.description; });

// -- files

/// A directory in which files lie that claim to be the pages of some process.
class StatisticsFiles : public testing::Test {
 protected:
  StatisticsFiles() {
    std::string name = testing::TempDir() + "/statistics_XXXXXX";
    directory_ = ::mkdtemp(name.data());
  }
  ~StatisticsFiles() override { std::filesystem::remove_all(directory_); }

  static std::string name_for(pid_t pid, uid_t uid = ::geteuid()) {
    return kStatisticsPrefix + std::to_string(uid) + "." + std::to_string(own_pid_namespace()) + "." +
           std::to_string(pid) + ".abcdef";
  }
  [[nodiscard]] std::string path(const std::string& name) const { return directory_ + "/" + name; }
  UniqueFd write(const std::string& name, std::span<const std::byte> bytes) {
    UniqueFd file(::open(path(name).c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
    EXPECT_EQ(::write(file.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    return file;
  }
  /// As the process whose page it is has it.
  struct Mapping {
    explicit Mapping(int fd) : memory(::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0)) {}
    Mapping(const Mapping&) = delete;
    ~Mapping() { ::munmap(memory, 4096); }
    void* memory;
  };
  std::vector<ProcessSnapshot> read() {
    refused_.clear();
    return read_all_statistics(directory_.c_str(), refused_);
  }

  std::string directory_;
  std::vector<std::string> refused_;
};

TEST_F(StatisticsFiles, PageOfALivingProcessIsRead) {
  const UniqueFd file = write(name_for(::getpid()), Page().bytes());
  const Mapping mapping(file.get());
  EXPECT_THAT(read(), ElementsAre(testing::Field(&ProcessSnapshot::program, "story")));
  EXPECT_THAT(refused_, IsEmpty());
}

TEST_F(StatisticsFiles, PageThatItsProcessDoesNotHaveIsRemoved) {
  // An earlier program of this process left it, or the number belongs to another process now.
  write(name_for(::getpid()), Page().bytes());
  EXPECT_THAT(read(), IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(path(name_for(::getpid()))));
}

TEST_F(StatisticsFiles, GarbageIsRefusedWithAReason) {
  const std::vector<std::byte> garbage(5000, std::byte{'x'});
  const UniqueFd file = write(name_for(::getpid()), garbage);
  const Mapping mapping(file.get());
  EXPECT_THAT(read(), IsEmpty());
  EXPECT_THAT(refused_, ElementsAre(HasSubstr("statistics: no page")));
}

TEST_F(StatisticsFiles, EmptyFileIsRefused) {
  const UniqueFd file = write(name_for(::getpid()), {});
  const Mapping mapping(file.get());
  EXPECT_THAT(read(), IsEmpty());
  EXPECT_THAT(refused_, ElementsAre(HasSubstr("statistics: short")));
}

TEST_F(StatisticsFiles, HugeFileIsRefused) {
  const UniqueFd file = write(name_for(::getpid()), Page().bytes());
  ASSERT_EQ(::ftruncate(file.get(), kStatisticsBytes + 1), 0);
  EXPECT_THAT(read(), IsEmpty());
  EXPECT_THAT(refused_, ElementsAre(HasSubstr("File too large")));
}

TEST_F(StatisticsFiles, PageOfAnotherProcessUnderThisNameIsRefused) {
  const Page page;
  page.header->pid = 1;
  const UniqueFd file = write(name_for(::getpid()), page.bytes());
  const Mapping mapping(file.get());
  EXPECT_THAT(read(), IsEmpty());
  EXPECT_THAT(refused_, ElementsAre(HasSubstr("another process")));
}

TEST_F(StatisticsFiles, LinksAndPipesAreNotFollowed) {
  const UniqueFd file = write("page", Page().bytes());
  const Mapping mapping(file.get());
  const std::string name = name_for(::getpid());
  ASSERT_EQ(::symlink(path("page").c_str(), path(name).c_str()), 0);
  EXPECT_THAT(read(), IsEmpty());
  EXPECT_THAT(refused_, ElementsAre(HasSubstr("open")));
  ASSERT_EQ(::unlink(path(name).c_str()), 0);
  ASSERT_EQ(::mkfifo(path(name).c_str(), 0600), 0);
  EXPECT_THAT(read(), IsEmpty());
  EXPECT_THAT(refused_, ElementsAre(HasSubstr("not its owner's file")));
}

TEST_F(StatisticsFiles, FileOfAnotherUserUnderOurNameIsRefusedAndStays) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root gives files away";
  constexpr uid_t kNobody = 65534;
  const std::string name = name_for(::getpid());
  const UniqueFd file = write(name, Page().bytes());
  const Mapping mapping(file.get());
  ASSERT_EQ(::chown(path(name).c_str(), kNobody, kNobody), 0);
  EXPECT_THAT(read(), IsEmpty());
  EXPECT_THAT(refused_, ElementsAre(HasSubstr("not its owner's file")));
  EXPECT_TRUE(std::filesystem::exists(path(name)));
}

TEST_F(StatisticsFiles, OtherNamesAndNamespacesAreLeftAlone) {
  for (const std::string name : {"ringsock.", "ringsock.0.1.2", "ringsock.0.1.-2.abcdef", "ringsock.x.1.2.abcdef",
                                 "ringsock.0.1.2.abcdefg", "ringsock.99999999999.1.2.abcdef", "other"}) {
    EXPECT_FALSE(parse_statistics_name(name)) << name;
    write(name, {});
  }
  const std::string elsewhere = kStatisticsPrefix + std::to_string(::geteuid()) + ".1.4000000.abcdef";
  ASSERT_TRUE(parse_statistics_name(elsewhere));
  write(elsewhere, {});
  EXPECT_THAT(read(), IsEmpty());
  EXPECT_THAT(refused_, IsEmpty());
  EXPECT_TRUE(std::filesystem::exists(path(elsewhere))) << "its process may live in another pid namespace";
}

TEST_F(StatisticsFiles, MissingDirectoryHasNoPages) {
  std::filesystem::remove_all(directory_);
  EXPECT_THAT(read(), IsEmpty());
}

}  // namespace
}  // namespace ringsock::runtime
