#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include "core/base/socket_address.h"
#include "tests/support/child.h"
#include "tests/unit/tools/local_port.h"
#include "tools/rcopy_client.h"
#include "tools/rcopy_protocol.h"
#include "tools/rcopy_server.h"

namespace ringsock::tools {
namespace {

using ringsock::testing::Child;
using ringsock::testing::ReservedPort;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

/// What the server printed up to `words`, or up to its end.
std::string read_until(int fd, const std::string& words) {
  std::string text;
  for (char c = 0; !text.ends_with(words) && ::read(fd, &c, 1) == 1;) text += c;
  return text;
}

/// A server over kernel sockets that receives into a directory of its own.
class RcopyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "/rcopy_XXXXXX";
    directory_ = ::mkdtemp(name.data());
    std::filesystem::create_directory(directory_ + "/in");
    int pipe_fds[2];
    ASSERT_EQ(::pipe2(pipe_fds, O_CLOEXEC), 0);
    server_output_.reset(pipe_fds[0]);
    UniqueFd write_end(pipe_fds[1]);
    server_.emplace(Child::start([&](ringsock::testing::Channel&) {
      ::dup2(write_end.get(), STDOUT_FILENO);
      ::umask(022);
      if (::chdir((directory_ + "/in").c_str()) != 0) return 1;
      static_cast<void>(serve_copies(kernel_sockets(), port_.text()));
      return 1;
    }));
    write_end.reset();
    ASSERT_THAT(read_until(server_output_.get(), "waiting for connection..."), ::testing::EndsWith("connection..."));
  }
  void TearDown() override {
    server_.reset();
    std::filesystem::remove_all(directory_);
  }

  std::string source(const std::string& contents, mode_t mode = 0644) {
    const std::string path = directory_ + "/source";
    std::ofstream(path) << contents;
    ::chmod(path.c_str(), mode);
    return path;
  }
  [[nodiscard]] std::string received(const std::string& name) const {
    std::ifstream file(directory_ + "/in/" + name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  [[nodiscard]] std::vector<std::string> received_names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory_ + "/in")) {
      names.push_back(entry.path().filename());
    }
    return names;
  }
  Status copy(const std::string& from, const std::string& to) {
    ::testing::internal::CaptureStdout();
    Status done = copy_to_server(kernel_sockets(), {from, "127.0.0.1", to, port_.text()});
    client_output_ = ::testing::internal::GetCapturedStdout();
    return done;
  }

  /// A client that says what it likes.
  Socket raw_client() {
    Socket socket(kernel_sockets(), ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto address = SocketAddress::v4(INADDR_LOOPBACK, port_.number());
    EXPECT_TRUE(connect_socket(socket, address.get(), address.length()));
    return socket;
  }
  static void say(const Socket& socket, const void* bytes, std::size_t length) {
    EXPECT_TRUE(RcopyStream(socket, 10'000).send_all({static_cast<const std::byte*>(bytes), length}));
  }
  static void say(const Socket& socket, const RcopyHeader& header) { say(socket, &header, sizeof header); }
  static void say_open(const Socket& socket, const std::string& name) {
    std::string path = name;
    path.resize((name.size() + 8) / 8 * 8);
    say(socket, {0, 1, static_cast<std::uint16_t>(16 + path.size()), 0100644, 0});
    say(socket, path.data(), path.size());
  }
  /// The status in the server's answer; nothing when it just hangs up.
  static std::optional<std::uint32_t> answer(const Socket& socket) {
    RcopyHeader reply{};
    if (!RcopyStream(socket, 10'000).receive_all(bytes_of(reply))) return std::nullopt;
    return reply.data;
  }
  void expect_still_serving() {
    EXPECT_TRUE(copy(source("still here"), "proof"));
    EXPECT_EQ(received("proof"), "still here");
  }

  std::string directory_;
  ReservedPort port_;
  UniqueFd server_output_;
  std::optional<Child> server_;
  std::string client_output_;
};

TEST_F(RcopyTest, AFileArrivesWithItsContentsAndPermissions) {
  std::string contents(3'000'000, '\0');
  for (std::size_t i = 0; i < contents.size(); ++i) contents[i] = static_cast<char>(i * 2654435761u >> 13);
  ASSERT_TRUE(copy(source(contents, 0755), "copy"));
  EXPECT_EQ(received("copy"), contents);
  EXPECT_THAT(received_names(), UnorderedElementsAre("copy"));
  struct stat status {};
  ASSERT_EQ(::stat((directory_ + "/in/copy").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0755u);
  EXPECT_THAT(client_output_, ::testing::ContainsRegex("3000000 bytes in [0-9.]+ seconds = [0-9.]+ Gb/sec"));
}

TEST_F(RcopyTest, AnEmptyFileArrives) {
  ASSERT_TRUE(copy(source(""), "empty"));
  EXPECT_THAT(received_names(), UnorderedElementsAre("empty"));
}

TEST_F(RcopyTest, SetUserIdAndWritePermissionForAllDoNotArrive) {
  ASSERT_TRUE(copy(source("x", 06777), "copy"));
  struct stat status {};
  ASSERT_EQ(::stat((directory_ + "/in/copy").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0755u);
}

TEST_F(RcopyTest, TheClientIsToldWhyTheServerRefuses) {
  std::filesystem::create_directory(directory_ + "/in/folder");
  EXPECT_EQ(copy(source("x"), "folder").error().code, EISDIR);
  EXPECT_EQ(copy(source("x"), "absent/copy").error().code, ENOENT);
  EXPECT_EQ(copy(source("x"), "/dev/null").error().code, EINVAL);
  EXPECT_EQ(copy(source("x"), std::string(5000, 'n')).error().code, ENAMETOOLONG);
  expect_still_serving();
}

TEST_F(RcopyTest, TheClientRefusesSourcesThatAreNoFiles) {
  EXPECT_EQ(copy(directory_ + "/absent", "copy").error().code, ENOENT);
  EXPECT_EQ(copy(directory_, "copy").error().code, EISDIR);
}

TEST_F(RcopyTest, ACopyThatBreaksOffLeavesTheOldFileAlone) {
  ASSERT_TRUE(copy(source("old"), "copy"));
  {
    const Socket client = raw_client();
    say_open(client, "copy");
    EXPECT_EQ(answer(client), 0u);
    say(client, {0, 3, 24, 0, 0});
    const std::uint64_t size = 1000;
    say(client, &size, sizeof size);
    say(client, "new", 3);
  }
  expect_still_serving();
  EXPECT_EQ(received("copy"), "old");
  EXPECT_THAT(received_names(), UnorderedElementsAre("copy", "proof"));
}

TEST_F(RcopyTest, ASizeThatFitsNoDiskIsRefusedBeforeAnyDataCome) {
  const Socket client = raw_client();
  say_open(client, "copy");
  EXPECT_EQ(answer(client), 0u);
  say(client, {0, 3, 24, 0, 0});
  const std::uint64_t size = std::uint64_t{1} << 63;
  say(client, &size, sizeof size);
  EXPECT_EQ(answer(client), static_cast<std::uint32_t>(EFBIG));
  expect_still_serving();
  EXPECT_THAT(received_names(), UnorderedElementsAre("proof"));
}

struct BadHeader {
  const char* description;
  RcopyHeader header;
};

class BadHeaders : public RcopyTest, public ::testing::WithParamInterface<BadHeader> {};

TEST_P(BadHeaders, EndTheConnectionAndNothingElse) {
  const Socket client = raw_client();
  say(client, GetParam().header);
  const auto status = answer(client);
  EXPECT_TRUE(!status || *status == static_cast<std::uint32_t>(EPROTO));
  EXPECT_EQ(answer(client), std::nullopt) << "the connection is closed";
  expect_still_serving();
}

INSTANTIATE_TEST_SUITE_P(
    Rcopy, BadHeaders,
    ::testing::Values(BadHeader{"Version", {9, 1, 24, 0, 0}}, BadHeader{"Command", {0, 77, 16, 0, 0}},
                      BadHeader{"Reply", {0, 0x81, 16, 0, 0}}, BadHeader{"OpenWithoutPath", {0, 1, 16, 0, 0}},
                      BadHeader{"OpenShorterThanItsHeader", {0, 1, 3, 0, 0}},
                      BadHeader{"OpenLongerThanAnyPath", {0, 1, 65535, 0, 0}},
                      BadHeader{"WriteFirst", {0, 3, 24, 0, 0}}, BadHeader{"CloseFirst", {0, 2, 16, 0, 0}}),
    [](const auto& info) { return info.param.description; });

TEST_F(RcopyTest, APathWithoutAnEndIsRefused) {
  const Socket client = raw_client();
  say(client, {0, 1, 24, 0, 0});
  say(client, "12345678", 8);
  EXPECT_EQ(answer(client), static_cast<std::uint32_t>(EPROTO));
  expect_still_serving();
}

TEST_F(RcopyTest, ClientsThatComeAndGoDoNotDisturb) {
  for (int i = 0; i < 20; ++i) raw_client();
  expect_still_serving();
}

TEST_F(RcopyTest, ControlCharactersOfAPathDoNotReachTheTerminal) {
  ASSERT_TRUE(copy(source("x"), "a\033[2Jb"));
  EXPECT_THAT(read_until(server_output_.get(), "done\n"), ::testing::HasSubstr("opening: a?[2Jb, "));
}

}  // namespace
}  // namespace ringsock::tools
