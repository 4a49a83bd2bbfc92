// Programs with one thread that change their user and their capabilities while the library runs threads of its own.
#include <grp.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "tests/preload/preloaded.h"

extern "C" int capset(__user_cap_header_struct* header, const __user_cap_data_struct* data);

namespace ringsock::preloaded {
namespace {

constexpr uid_t kUser = 12'345;
constexpr auto kSame = static_cast<uid_t>(-1);
constexpr std::uint32_t kMaySetIds = (1U << CAP_SETUID) | (1U << CAP_SETGID);

using SetCapabilities = int (*)(__user_cap_header_struct*, const __user_cap_data_struct*);
int by_system_call(__user_cap_header_struct* header, const __user_cap_data_struct* data) {
  return static_cast<int>(::syscall(SYS_capset, header, data));
}

/// Leaves the calling thread these capabilities, of the first 32.
void keep_capabilities(std::uint32_t kept, SetCapabilities call) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  const __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {{kept, kept, 0}, {}};
  expect(call(&header, data) == 0, "capset");
}

std::filesystem::directory_iterator threads() { return std::filesystem::directory_iterator("/proc/self/task"); }
auto count_threads() { return std::distance(begin(threads()), end(threads())); }

/// The values of a line of /proc/PID/task/N/status, of all threads of this process.
std::set<std::string> of_all_threads(const std::string& line) {
  std::set<std::string> found;
  for (const auto& thread : threads()) {
    std::ifstream status(thread.path() / "status");
    for (std::string text; std::getline(status, text);) {
      if (text.starts_with(line)) found.insert(text);
    }
  }
  return found;
}

/// Runs `program` in a server process with a connection, which has a thread of the library.
template <class Program>
int run_as_server(Program program) {
  return wait_for(spawn([&] {
    const Listener listener = listen_anywhere();
    const int client = connect_to(listener.port);
    const int server = ::accept(listener.fd, nullptr, nullptr);
    expect(is_on_ring(client) && is_on_ring(server), "on a ring");
    expect(count_threads() > 1, "a thread of the library");
    program();
    send_all(client, "still here");
    expect(receive(server, 10) == "still here", "the connection goes on");
    ::close(client);
    const int later = connect_to(listener.port);
    expect(later >= 0 && ::accept(listener.fd, nullptr, nullptr) >= 0, "the server goes on");
  }));
}

class Credentials : public ::testing::TestWithParam<SetCapabilities> {
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root may become another user";
  }
};

// A server that keeps the right to become root again, as ProFTPD's mod_cap does.
TEST_P(Credentials, AServerThatKeepsOneCapabilityChangesItsUserToAndFro) {
  EXPECT_EQ(run_as_server([set = GetParam()] {
              expect(::prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) == 0, "PR_SET_KEEPCAPS");
              expect(::setreuid(kUser, kUser) == 0, "setreuid");
              keep_capabilities(kMaySetIds, set);
              for (int i = 0; i < 3; ++i) {
                expect(::setresuid(kSame, 0, kSame) == 0, "setresuid to root");
                expect(::setresuid(kSame, kUser, kSame) == 0, "setresuid to the user");
                keep_capabilities(kMaySetIds, set);
                expect(::seteuid(0) == 0 && ::geteuid() == 0, "seteuid");
                expect(::setegid(kUser) == 0 && ::getegid() == kUser, "setegid");
                expect(::seteuid(kUser) == 0, "seteuid back");
                keep_capabilities(kMaySetIds, set);
              }
              expect(::setgroups(0, nullptr) == 0, "setgroups");
              expect(::initgroups("root", kUser) == 0, "initgroups");
              expect(::setregid(kUser, kUser) == 0 && ::setresgid(kUser, kUser, kUser) == 0, "setresgid");
              expect(::setgid(kUser) == 0 && ::setuid(kUser) == 0, "setuid");
              expect(of_all_threads("Uid:").size() == 1, "all threads have one user");
              expect(of_all_threads("Gid:").size() == 1, "all threads have one group");
            }),
            0);
}

TEST_P(Credentials, ThatAProgramGivesUpAreGivenUpByTheLibrarysThreads) {
  EXPECT_EQ(run_as_server([set = GetParam()] {
              keep_capabilities(0, set);
              expect(of_all_threads("CapEff:").size() == 1, "no thread has capabilities");
              expect(of_all_threads("CapPrm:").size() == 1, "no thread may get some");
              expect(error_of(::setuid(kUser)) == EPERM, "setuid is refused");
            }),
            0);
}

TEST_P(Credentials, OfAPlainServerThatGivesUpRootAreThoseOfAllThreads) {
  EXPECT_EQ(run_as_server([] {
              expect(::setgroups(0, nullptr) == 0 && ::setgid(kUser) == 0 && ::setuid(kUser) == 0, "setuid");
              expect(count_threads() > 1, "the thread is still there");
              expect(of_all_threads("Uid:").size() == 1, "all threads have one user");
              expect(error_of(::setuid(0)) == EPERM, "no way back");
            }),
            0);
}

INSTANTIATE_TEST_SUITE_P(Calls, Credentials,
                         ::testing::Values(SetCapabilities{capset}, SetCapabilities{by_system_call}),
                         [](const auto& info) { return info.param == capset ? "capset" : "syscall"; });

}  // namespace
}  // namespace ringsock::preloaded
