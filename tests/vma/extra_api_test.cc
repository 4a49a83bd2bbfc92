// VMA's Extra API, as a program uses it that was built with <mellanox/vma_extra.h>. Runs beside the echo service
// (two_hosts.sh), with libvma; extra_api_vma.sh sets the variables.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mellanox/vma_extra.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/thread_status.h"
#include "tests/vma/far_socket.h"
#include "tests/vma/shell.h"
#include "tests/vma/udp_world.h"

namespace ringsock::vma_tests {
namespace {

using ::testing::HasSubstr;

vma_api_t& api() { return *vma_get_api(); }

/// The answer of a call that fails: its errno. 0: it did not fail.
template <class Call>
int error_of(Call call) {
  errno = 0;
  return call() == -1 ? errno : 0;
}

std::string vma_stats(const std::string& options) {
  const WithoutLibrary here;
  const std::string command = "tools/vma_stats -p " + std::to_string(::getpid()) + " " + options + " 2>&1";
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  std::string out;
  std::array<char, 4096> part;
  while (const std::size_t got = std::fread(part.data(), 1, part.size(), pipe.get())) out.append(part.data(), got);
  return out;
}

std::string log() {
  std::ifstream file(std::getenv("VMA_LOG_FILE"));
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Two sockets of this host that the echo service answers.
class ExtraApi : public ::testing::Test {
 protected:
  ExtraApi() { socket_.limit_waits(); }
  void bind_here(const Socket& socket) {
    const Address here("10.9.0.1", 0);
    ASSERT_EQ(::bind(socket, here.get(), here.length()), 0) << std::strerror(errno);
  }
  void exchange(const Socket& socket, const std::string& data) {
    ASSERT_EQ(socket.send_to(echo_, data), static_cast<ssize_t>(data.size())) << std::strerror(errno);
    ASSERT_EQ(socket.receive(), data) << std::strerror(errno);
  }
  /// Afterwards rings send, too: the neighbour is known.
  void until_rings_send(const Socket& socket) {
    for (long sent = 1; sent > 0 && !HasFatalFailure();) {
      const long before = kernels_sent_datagrams(AF_INET);
      exchange(socket, "hello");
      sent = kernels_sent_datagrams(AF_INET) - before;
    }
  }
  int ring_of(const Socket& socket) {
    int ring = -1;
    EXPECT_EQ(api().get_socket_rings_fds(socket, &ring, 1), 1);
    return ring;
  }
  static bool is_readable(int fd, int milliseconds = 0) {
    pollfd one{fd, POLLIN, 0};
    return ::poll(&one, 1, milliseconds) == 1 && one.revents == POLLIN;
  }
  ssize_t send_dummy(const Socket& socket, const Address& to, const std::string& data, int flags = 0) {
    return ::sendto(socket, data.data(), data.size(), VMA_SND_FLAGS_DUMMY | flags, to.get(), to.length());
  }

  const Address echo_{"10.9.0.2", kEchoPort};
  Socket socket_{AF_INET};
};

// -- the table

TEST_F(ExtraApi, TheProcessHasOneTable) {
  vma_api_t* const first = vma_get_api();
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(vma_get_api(), first);
  std::array<void*, 2> room{};
  socklen_t length = sizeof room;
  ASSERT_EQ(::getsockopt(-1, SOL_SOCKET, SO_VMA_GET_API, room.data(), &length), 0);
  EXPECT_EQ(length, sizeof(void*));
  EXPECT_EQ(room[0], first);
}

TEST_F(ExtraApi, OnlyTheDescriptorMinusOneAsksForTheTable) {
  void* table = nullptr;
  socklen_t little = sizeof table - 1, enough = sizeof table;
  EXPECT_EQ(error_of([&] { return ::getsockopt(-1, SOL_SOCKET, SO_VMA_GET_API, &table, &little); }), EBADF);
  EXPECT_EQ(error_of([&] { return ::getsockopt(socket_, SOL_SOCKET, SO_VMA_GET_API, &table, &enough); }), ENOPROTOOPT);
  EXPECT_EQ(error_of([&] { return ::getsockopt(-1, SOL_SOCKET, SO_VMA_USER_DATA, &table, &enough); }), EBADF);
  EXPECT_EQ(error_of([&] { return ::getsockopt(-2, SOL_SOCKET, SO_VMA_GET_API, &table, &enough); }), EBADF);
  EXPECT_EQ(error_of([&] { return ::getsockopt(-1, SOL_SOCKET, SO_VMA_GET_API, nullptr, &enough); }), EBADF);
  EXPECT_EQ(error_of([&] { return ::getsockopt(-1, SOL_SOCKET, SO_VMA_GET_API, &table, nullptr); }), EBADF);
  EXPECT_EQ(table, nullptr);
}

TEST_F(ExtraApi, TheMaskHasTheFunctionsThatWork) {
  const std::uint64_t rings = VMA_EXTRA_API_GET_SOCKET_RINGS_NUM | VMA_EXTRA_API_GET_SOCKET_RINGS_FDS |
                              VMA_EXTRA_API_GET_SOCKET_TX_RING_FD | VMA_EXTRA_API_GET_SOCKET_NETWORK_HEADER |
                              VMA_EXTRA_API_ADD_RING_PROFILE | VMA_EXTRA_API_MODIFY_RING;
  const std::uint64_t process =
      VMA_EXTRA_API_ADD_CONF_RULE | VMA_EXTRA_API_THREAD_OFFLOAD | VMA_EXTRA_API_DUMP_FD_STATS | VMA_EXTRA_API_IOCTL;
  const std::uint64_t packets = VMA_EXTRA_API_REGISTER_RECV_CALLBACK | VMA_EXTRA_API_RECVFROM_ZCOPY |
                                VMA_EXTRA_API_FREE_PACKETS | VMA_EXTRA_API_CYCLIC_BUFFER_READ |
                                VMA_EXTRA_API_GET_MEM_INFO;
  EXPECT_EQ(api().vma_extra_supported_mask, rings | process | packets) << "SocketXtreme needs its variable";
}

// -- calls at any time

/// Calls every function with a descriptor that no socket on a ring has.
void expect_answers_for_no_socket(int fd, int header_error) {
  vma_api_t& api = vma_tests::api();
  std::array<char, 512> room{};
  int flags = MSG_DONTWAIT, ring = -1;
  std::uint16_t bytes = sizeof room;
  std::uint32_t key = 0;
  vma_completion_t completion{};
  vma_buff_t buffer{};
  vma_mlx_hw_device_data data{};
  Address to("10.9.0.2", 9);
  vma_modify_ring_attr modify{};
  modify.comp_bit_mask = VMA_MODIFY_RING_CQ_MODERATION;
  modify.ring_fd = fd;
  const auto callback = [](int, std::size_t, iovec*, vma_info_t*, void*) { return VMA_PACKET_DROP; };
  EXPECT_EQ(error_of([&] { return api.register_recv_callback(fd, callback, nullptr); }), EINVAL);
  EXPECT_EQ(error_of([&] { return api.register_recv_callback(fd, nullptr, nullptr); }), EINVAL);
  EXPECT_EQ(api.recvfrom_zcopy(fd, room.data(), room.size(), &flags, nullptr, nullptr), -1);
  EXPECT_EQ(flags, MSG_DONTWAIT);
  EXPECT_EQ(error_of([&] { return api.free_packets(fd, nullptr, 1); }), EINVAL);
  EXPECT_EQ(error_of([&] { return api.socketxtreme_poll(fd, &completion, 1, 0); }), EOPNOTSUPP);
  EXPECT_EQ(error_of([&] { return api.socketxtreme_free_vma_packets(&completion.packet, 1); }), EOPNOTSUPP);
  EXPECT_EQ(error_of([&] { return api.socketxtreme_ref_vma_buff(&buffer); }), EOPNOTSUPP);
  EXPECT_EQ(error_of([&] { return api.socketxtreme_free_vma_buff(&buffer); }), EOPNOTSUPP);
  EXPECT_EQ(api.get_socket_rings_num(fd), 0);
  EXPECT_EQ(api.get_socket_rings_fds(fd, &ring, 1), 0);
  EXPECT_EQ(ring, -1);
  EXPECT_EQ(error_of([&] { return api.get_socket_tx_ring_fd(fd, to.get(), to.length()); }), EINVAL);
  EXPECT_EQ(error_of([&] { return api.get_socket_network_header(fd, room.data(), &bytes); }), header_error);
  EXPECT_EQ(error_of([&] { return api.get_ring_direct_descriptors(fd, &data); }), EOPNOTSUPP);
  EXPECT_EQ(error_of([&] { return api.register_memory_on_ring(fd, room.data(), room.size(), &key); }), EOPNOTSUPP);
  EXPECT_EQ(error_of([&] { return api.deregister_memory_on_ring(fd, room.data(), room.size()); }), EOPNOTSUPP);
  EXPECT_EQ(error_of([&] { return api.vma_modify_ring(&modify); }), EBADFD);
}

TEST_F(ExtraApi, EachFunctionAnswersForWhatIsNoSocketOfARing) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  ASSERT_EQ(::fcntl(pipe[0], F_SETFL, O_NONBLOCK), 0);
  const int stream = ::socket(AF_UNIX, SOCK_STREAM, 0), set = ::epoll_create1(0);
  int closed = -1;
  {
    const Socket socket(AF_INET);
    bind_here(socket);
    closed = socket;
  }
  for (const int fd : {-1, 1'000'000, closed}) expect_answers_for_no_socket(fd, EINVAL);
  for (const int fd : {pipe[0], stream, set}) expect_answers_for_no_socket(fd, ENOTCONN);
  for (const int fd : {pipe[0], pipe[1], stream, set}) ::close(fd);
}

TEST_F(ExtraApi, BadPointersAreRefused) {
  bind_here(socket_);
  vma_api_t& api = vma_tests::api();
  void* const garbage = reinterpret_cast<void*>(0x1234567890000);
  const auto as = [&]<class T>(T*) { return static_cast<T*>(garbage); };
  EXPECT_EQ(api.add_conf_rule(nullptr), 1);
  EXPECT_EQ(api.add_conf_rule(static_cast<const char*>(garbage)), 1);
  EXPECT_EQ(error_of([&] { return api.get_socket_rings_fds(socket_, nullptr, 1); }), EINVAL);
  int ring = -1;
  EXPECT_EQ(error_of([&] { return api.get_socket_rings_fds(socket_, &ring, 0); }), EINVAL);
  EXPECT_EQ(error_of([&] { return api.get_socket_rings_fds(socket_, &ring, -1); }), EINVAL);
  EXPECT_EQ(error_of([&] { return api.get_socket_rings_fds(socket_, as(static_cast<int*>(nullptr)), 1); }), EFAULT);
  EXPECT_EQ(error_of([&] { return api.get_socket_tx_ring_fd(socket_, nullptr, 16); }), EINVAL);
  EXPECT_EQ(error_of([&] { return api.get_socket_tx_ring_fd(socket_, as(static_cast<sockaddr*>(nullptr)), 16); }),
            EINVAL);
  EXPECT_EQ(error_of([&] { return api.get_socket_network_header(socket_, nullptr, nullptr); }), EINVAL);
  EXPECT_EQ(error_of([&] { return api.vma_add_ring_profile(nullptr, &ring); }), EINVAL);
  EXPECT_EQ(error_of([&] { return api.vma_add_ring_profile(as(static_cast<vma_ring_type_attr*>(nullptr)), &ring); }),
            EFAULT);
  EXPECT_EQ(error_of([&] { return api.vma_modify_ring(nullptr); }), EINVAL);
  EXPECT_EQ(error_of([&] { return api.vma_modify_ring(as(static_cast<vma_modify_ring_attr*>(nullptr))); }), EFAULT);
  EXPECT_EQ(error_of([&] { return api.register_memory_on_ring(socket_, &ring, sizeof ring, nullptr); }), EINVAL);
  EXPECT_EQ(error_of([&] { return api.get_ring_direct_descriptors(socket_, nullptr); }), EINVAL);
  EXPECT_EQ(api.ioctl(nullptr, 0), 0);
  EXPECT_EQ(error_of([&] { return api.ioctl(garbage, 64); }), EFAULT);
  EXPECT_EQ(error_of([&] { return api.recvfrom_zcopy(socket_, garbage, 64, nullptr, nullptr, nullptr); }), EFAULT);
}

TEST_F(ExtraApi, AForkedChildMayCallEverything) {
  bind_here(socket_);
  const int ring = ring_of(socket_);
  const pid_t child = ::fork();
  if (child == 0) {
    pollfd one{ring, POLLIN, 0};
    const bool has_no_ring =
        api().get_socket_rings_num(socket_) == 0 && ::poll(&one, 1, 0) == 1 && (one.revents & POLLHUP) != 0;
    vma_modify_ring_attr modify{};
    modify.comp_bit_mask = VMA_MODIFY_RING_CQ_MODERATION;
    modify.ring_fd = ring;
    const bool is_refused = error_of([&] { return api().vma_modify_ring(&modify); }) == EBADFD;
    const Socket own(AF_INET);
    const Address here("10.9.0.1", 0);
    int own_ring = -1;
    const bool has_its_own = ::bind(own, here.get(), here.length()) == 0 &&
                             api().get_socket_rings_fds(own, &own_ring, 1) == 1 && own_ring >= 0;
    ::_exit(has_no_ring && is_refused && has_its_own && api().add_conf_rule("# nothing") == 0 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

/// In a process that has made no socket.
class ExtraApiDeathTest : public ::testing::Test {
 protected:
  ExtraApiDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

[[noreturn]] void call_all_before_the_first_socket() {
  expect_answers_for_no_socket(-1, EINVAL);
  EXPECT_EQ(error_of([] { return api().dump_fd_stats(0, 5); }), EINVAL);
  EXPECT_EQ(api().thread_offload(1, ::pthread_self()), 0);
  EXPECT_EQ(api().add_conf_rule("use vma udp_sender *:*"), 0);
  vma_ring_type_attr profile{};
  int key = 0;
  EXPECT_EQ(api().vma_add_ring_profile(&profile, &key), 0);
  EXPECT_EQ(key, 1);
  ::_exit(::testing::Test::HasFailure() ? 1 : 0);
}

TEST_F(ExtraApiDeathTest, BeforeTheFirstSocketEveryFunctionAnswers) {
  EXPECT_EXIT(call_all_before_the_first_socket(), testing::ExitedWithCode(0), "");
}

// -- rules and threads

TEST_F(ExtraApi, ARuleConcernsSocketsFromThenOnAndABadLineSpoilsNothing) {
  ASSERT_EQ(api().add_conf_rule("use os udp_receiver 10.9.0.1:7777"), 0);
  EXPECT_EQ(api().add_conf_rule("use nobody udp_receiver"), 1);
  EXPECT_EQ(api().add_conf_rule("\001 \377"), 1);
  EXPECT_EQ(api().add_conf_rule("use os udp_receiver 10.9.0.1:7778\n"), 0) << "after a bad line";
  for (const std::uint16_t port : std::array<std::uint16_t, 3>{7777, 7778, 7779}) {
    const Socket socket(AF_INET);
    const Address here("10.9.0.1", port);
    ASSERT_EQ(::bind(socket, here.get(), here.length()), 0);
    EXPECT_EQ(api().get_socket_rings_num(socket), port == 7779 ? 1 : 0) << port;
  }
  EXPECT_THAT(log(), HasSubstr("Error (line:1) : "));
}

TEST_F(ExtraApi, AThreadMayKeepItsSocketsFromRings) {
  const auto rings_of_a_new_socket = [this] {
    const Socket socket(AF_INET);
    bind_here(socket);
    return api().get_socket_rings_num(socket);
  };
  EXPECT_EQ(rings_of_a_new_socket(), 1);
  std::thread([&] {
    ASSERT_EQ(api().thread_offload(0, ::pthread_self()), 0);
    EXPECT_EQ(rings_of_a_new_socket(), 0);
    ASSERT_EQ(api().thread_offload(1, ::pthread_self()), 0);
    EXPECT_EQ(rings_of_a_new_socket(), 1);
    std::thread([&] { EXPECT_EQ(rings_of_a_new_socket(), 1) << "another thread"; }).join();
  }).join();
  EXPECT_EQ(rings_of_a_new_socket(), 1);
}

TEST_F(ExtraApi, StatisticsOfOneSocketOrOfAllAreDumpedToTheLog) {
  bind_here(socket_);
  const Socket other(AF_INET);
  constexpr int kWarning = 2;
  const auto mark = [](int fd) { return "Fd=[" + std::to_string(fd) + "]"; };
  const auto marks_in_log = [&](int fd) {
    int found = 0;
    const std::string text = log(), wanted = mark(fd);
    for (auto at = text.find(wanted); at != std::string::npos; at = text.find(wanted, at + 1)) ++found;
    return found;
  };
  const int before = marks_in_log(socket_), others_before = marks_in_log(other);
  ASSERT_EQ(api().dump_fd_stats(socket_, kWarning), 0);
  EXPECT_EQ(marks_in_log(socket_), before + 1);
  EXPECT_EQ(marks_in_log(other), others_before);
  ASSERT_EQ(api().dump_fd_stats(0, kWarning), 0);
  EXPECT_EQ(marks_in_log(socket_), before + 2);
  EXPECT_EQ(marks_in_log(other), others_before + 1);
  ASSERT_EQ(api().dump_fd_stats(socket_, 8), 0) << "a level that is not logged";
  EXPECT_EQ(marks_in_log(socket_), before + 2);
  for (const int level : {-1000, 1000}) EXPECT_EQ(api().dump_fd_stats(1'000'000, level), 0);
}

// -- rings

TEST_F(ExtraApi, ASocketHasARingOnceItIsBound) {
  EXPECT_EQ(api().get_socket_rings_num(socket_), 0);
  bind_here(socket_);
  EXPECT_EQ(api().get_socket_rings_num(socket_), 1);
  const Socket other(AF_INET);
  bind_here(other);
  const int ring = ring_of(socket_);
  EXPECT_GE(ring, 0);
  EXPECT_LT(ring, FD_SETSIZE);
  EXPECT_EQ(ring_of(socket_), ring);
  EXPECT_EQ(ring_of(other), ring) << "both sockets are on the interface's ring";
  ASSERT_EQ(::close(ring), 0);
  const int again = ring_of(other);
  EXPECT_GE(again, 0);
  EXPECT_EQ(ring_of(socket_), again) << "a ring whose descriptor was closed gets another one";
}

TEST_F(ExtraApi, ARingIsReadableWhilePacketsOfItsSocketsWait) {
  bind_here(socket_);
  const Socket other(AF_INET);
  bind_here(other);
  exchange(socket_, "hello");
  const int ring = ring_of(socket_);
  EXPECT_FALSE(is_readable(ring));
  const Messenger messenger(echo_);
  messenger.send("one", "10.9.0.1", socket_.name().port());
  messenger.send("two", "10.9.0.1", other.name().port());
  EXPECT_TRUE(is_readable(ring, 5000));
  EXPECT_EQ(socket_.receive(), "one");
  EXPECT_TRUE(is_readable(ring)) << "the other socket's packet";
  EXPECT_EQ(other.receive(), "two");
  EXPECT_FALSE(is_readable(ring));
}

TEST_F(ExtraApi, PollSelectAndEpollSleepOnARing) {
  bind_here(socket_);
  exchange(socket_, "hello");
  const int ring = ring_of(socket_), set = ::epoll_create1(0);
  epoll_event event{.events = EPOLLIN, .data = {.fd = ring}};
  ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, ring, &event), 0) << std::strerror(errno);
  const std::array<std::function<int()>, 3> waits{[&] { return is_readable(ring, 5000) ? 1 : 0; },
                                                  [&] {
                                                    fd_set readable;
                                                    FD_ZERO(&readable);
                                                    FD_SET(ring, &readable);
                                                    timeval limit{5, 0};
                                                    return ::select(ring + 1, &readable, nullptr, nullptr, &limit);
                                                  },
                                                  [&] { return ::epoll_wait(set, &event, 1, 5000); }};
  for (const auto& wait : waits) {
    std::thread later([&, self = ::gettid()] {
      EXPECT_TRUE(support::falls_asleep(self));
      EXPECT_EQ(socket_.send_to(echo_, "late"), 4);
    });
    EXPECT_EQ(wait(), 1);
    later.join();
    EXPECT_EQ(socket_.receive(nullptr, MSG_DONTWAIT), "late");
  }
  ::close(set);
}

// The thread that receives by one socket takes the other socket's packet from the ring, too.
TEST_F(ExtraApi, AThreadThatSleepsOnARingHearsOfWhatAnotherThreadHasTaken) {
  bind_here(socket_);
  const Socket other(AF_INET);
  other.limit_waits();
  bind_here(other);
  exchange(socket_, "hello");
  exchange(other, "hello");
  const int ring = ring_of(socket_);
  std::atomic<pid_t> sleeper{0};
  std::thread watching([&] {
    sleeper = ::gettid();
    EXPECT_TRUE(is_readable(ring, 30'000));
  });
  while (sleeper == 0) std::this_thread::yield();
  ASSERT_TRUE(support::falls_asleep(sleeper));
  ASSERT_EQ(socket_.send_to(echo_, "for the ring"), 12);
  ASSERT_EQ(other.send_to(echo_, "mine"), 4);
  EXPECT_EQ(other.receive(), "mine");
  watching.join();
  EXPECT_EQ(socket_.receive(nullptr, MSG_DONTWAIT), "for the ring");
}

TEST_F(ExtraApi, ARingsDescriptorIsForPollingAndDuplicatesAreTheSame) {
  bind_here(socket_);
  const int ring = ring_of(socket_), copy = ::dup(ring);
  char byte = 0;
  int number = 0;
  socklen_t length = sizeof number;
  EXPECT_EQ(::read(ring, &byte, 1), -1);
  EXPECT_EQ(::write(ring, &byte, 1), -1);
  EXPECT_EQ(::recv(ring, &byte, 1, 0), -1);
  EXPECT_EQ(::send(ring, &byte, 1, 0), -1);
  EXPECT_EQ(::listen(ring, 1), -1);
  EXPECT_EQ(::connect(ring, echo_.get(), echo_.length()), -1);
  EXPECT_EQ(::getsockname(ring, nullptr, nullptr), -1);
  (void)::getsockopt(ring, SOL_SOCKET, SO_ERROR, &number, &length);
  (void)::setsockopt(ring, SOL_SOCKET, SO_RCVBUF, &number, sizeof number);
  (void)::shutdown(ring, SHUT_RDWR);
  EXPECT_EQ(ring_of(socket_), ring);
  EXPECT_EQ(api().get_socket_rings_num(ring), 0) << "it is no socket";
  const Messenger messenger(echo_);
  messenger.send("one", "10.9.0.1", socket_.name().port());
  EXPECT_TRUE(is_readable(copy, 5000));
  ASSERT_EQ(::close(ring), 0);
  EXPECT_TRUE(is_readable(copy));
  EXPECT_EQ(socket_.receive(), "one");
  EXPECT_FALSE(is_readable(copy));
  ::close(copy);
}

/// A socket with a ring of its own.
Socket socket_with_own_ring() {
  Socket socket(AF_INET);
  vma_ring_alloc_logic_attr own{};
  own.comp_mask = VMA_RING_ALLOC_MASK_RING_INGRESS;
  own.ring_alloc_logic = RING_LOGIC_PER_SOCKET;
  own.ingress = 1;
  EXPECT_EQ(::setsockopt(socket, SOL_SOCKET, SO_VMA_RING_ALLOC_LOGIC, &own, sizeof own), 0);
  return socket;
}

TEST_F(ExtraApi, ARingThatEndsHangsUpAlsoForAThreadThatSleepsOnIt) {
  Socket socket = socket_with_own_ring();
  bind_here(socket);
  bind_here(socket_);
  const int ring = ring_of(socket);
  EXPECT_NE(ring_of(socket_), ring);
  EXPECT_FALSE(is_readable(ring));
  std::atomic<pid_t> sleeper{0};
  std::thread watching([&] {
    sleeper = ::gettid();
    pollfd one{ring, POLLIN, 0};
    EXPECT_EQ(::poll(&one, 1, 30'000), 1);
    EXPECT_EQ(one.revents & POLLHUP, POLLHUP);
  });
  while (sleeper == 0) std::this_thread::yield();
  ASSERT_TRUE(support::falls_asleep(sleeper));
  { const Socket ends = std::move(socket); }
  watching.join();
  EXPECT_GE(ring_of(socket_), 0);
  EXPECT_EQ(::fcntl(ring, F_GETFD), -1) << "the next request closes descriptors of ended rings";
}

TEST_F(ExtraApi, TheRingOfADestinationIsTheOneByWhichDatagramsLeave) {
  bind_here(socket_);
  until_rings_send(socket_);
  Address echo = echo_, loopback("127.0.0.1", 9), v6("fd09::2", 9);
  EXPECT_EQ(api().get_socket_tx_ring_fd(socket_, echo.get(), echo.length()), ring_of(socket_));
  EXPECT_EQ(error_of([&] { return api().get_socket_tx_ring_fd(socket_, loopback.get(), loopback.length()); }), ENODATA);
  EXPECT_EQ(error_of([&] { return api().get_socket_tx_ring_fd(socket_, v6.get(), v6.length()); }), ENODATA);
  EXPECT_EQ(error_of([&] { return api().get_socket_tx_ring_fd(socket_, echo.get(), 3); }), EINVAL);
}

TEST_F(ExtraApi, HeadersOfAConnectedSocketAreThoseOfItsPackets) {
  std::array<unsigned char, 64> headers{};
  std::uint16_t length = sizeof headers;
  bind_here(socket_);
  EXPECT_EQ(error_of([&] { return api().get_socket_network_header(socket_, headers.data(), &length); }), ENOTCONN);
  until_rings_send(socket_);
  ASSERT_EQ(::connect(socket_, echo_.get(), echo_.length()), 0);
  ASSERT_EQ(api().get_socket_network_header(socket_, nullptr, &length), 0) << std::strerror(errno);
  EXPECT_EQ(length, 14 + 20 + 8);
  length = 14 + 20 + 7;
  EXPECT_EQ(error_of([&] { return api().get_socket_network_header(socket_, headers.data(), &length); }), ENOBUFS);
  length = sizeof headers;
  ASSERT_EQ(api().get_socket_network_header(socket_, headers.data(), &length), 0);
  EXPECT_EQ(length, 14 + 20 + 8);
  const auto word = [&](std::size_t at) { return headers[at] << 8 | headers[at + 1]; };
  EXPECT_EQ(word(12), 0x0800) << "IPv4";
  EXPECT_EQ(headers[14], 0x45);
  EXPECT_EQ(headers[14 + 9], IPPROTO_UDP);
  EXPECT_EQ(std::string(reinterpret_cast<char*>(&headers[14 + 12]), 8),
            std::string("\x0a\x09\x00\x01\x0a\x09\x00\x02", 8));
  EXPECT_EQ(word(34), socket_.name().port());
  EXPECT_EQ(word(36), kEchoPort);
}

TEST_F(ExtraApi, AProfileHasOneKeyAndIsSetOnce) {
  vma_ring_type_attr packets{}, cards{}, unknown{};
  cards.ring_type = VMA_RING_EXTERNAL_MEM;
  const int seven = 7;
  std::memcpy(&unknown.ring_type, &seven, sizeof seven);
  int key = 0, again = 0, other = 0;
  ASSERT_EQ(api().vma_add_ring_profile(&packets, &key), 0);
  ASSERT_EQ(api().vma_add_ring_profile(&packets, &again), 0);
  EXPECT_GE(key, 1);
  EXPECT_EQ(again, key);
  packets.ring_pktq.comp_mask = 1;
  ASSERT_EQ(api().vma_add_ring_profile(&packets, &other), 0);
  EXPECT_NE(other, key);
  EXPECT_EQ(error_of([&] { return api().vma_add_ring_profile(&cards, &key); }), EOPNOTSUPP);
  EXPECT_EQ(error_of([&] { return api().vma_add_ring_profile(&unknown, &key); }), EINVAL);

  vma_ring_alloc_logic_attr attribute{};
  attribute.comp_mask = VMA_RING_ALLOC_MASK_RING_PROFILE_KEY | VMA_RING_ALLOC_MASK_RING_INGRESS;
  attribute.ingress = 1;
  const auto set_profile = [&](int profile) {
    attribute.ring_profile_key = static_cast<std::uint32_t>(profile);
    return error_of(
        [&] { return ::setsockopt(socket_, SOL_SOCKET, SO_VMA_RING_ALLOC_LOGIC, &attribute, sizeof attribute); });
  };
  EXPECT_EQ(set_profile(1000), EINVAL) << "there is no such profile";
  EXPECT_EQ(set_profile(key), 0);
  EXPECT_EQ(set_profile(other), EINVAL) << "it has one";
}

TEST_F(ExtraApi, AModeratedRingBringsEveryPacketAndTellsItsModeration) {
  bind_here(socket_);
  exchange(socket_, "hello");
  vma_modify_ring_attr modify{};
  modify.comp_bit_mask = VMA_MODIFY_RING_CQ_MODERATION;
  modify.ring_fd = ring_of(socket_);
  modify.cq_moderation = {48, 50};
  ASSERT_EQ(api().vma_modify_ring(&modify), 0) << std::strerror(errno);
  EXPECT_THAT(vma_stats("-v 3 -c 1"), ::testing::ContainsRegex("Moderation: +48 / 50 .frame count/usec period."));
  for (int i = 0; i < 20; ++i) {
    std::thread later([&, self = ::gettid()] {
      EXPECT_TRUE(support::falls_asleep(self));
      EXPECT_EQ(socket_.send_to(echo_, std::to_string(i)), static_cast<ssize_t>(std::to_string(i).size()));
    });
    EXPECT_EQ(socket_.receive(), std::to_string(i));
    later.join();
  }
  modify.cq_moderation = {1 << 16, 50};
  EXPECT_EQ(error_of([&] { return api().vma_modify_ring(&modify); }), EINVAL);
  modify.comp_bit_mask = VMA_MODIFY_RING_CQ_ARM;
  EXPECT_EQ(error_of([&] { return api().vma_modify_ring(&modify); }), EOPNOTSUPP);
  modify.comp_bit_mask = 1 << 7;
  EXPECT_EQ(error_of([&] { return api().vma_modify_ring(&modify); }), EINVAL);
  modify.comp_bit_mask = VMA_MODIFY_RING_CQ_MODERATION;
  modify.cq_moderation = {0, 0};
  EXPECT_EQ(api().vma_modify_ring(&modify), 0);
}

// -- the application's memory

std::atomic<std::size_t> allocated{0};
void* allocate(std::size_t bytes) {
  allocated += bytes;
  return std::malloc(bytes);
}
void release(void* memory) { std::free(memory); }

/// One item of control data for the ioctl function, with that many bytes.
int ask_for_memory(std::uint8_t flags, void* (*get)(std::size_t), std::size_t bytes = 17) {
  const vma_cmsg_ioctl_user_alloc_t wish{flags, get, release};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(32)> control{};
  auto* const item = reinterpret_cast<cmsghdr*>(control.data());
  item->cmsg_level = SOL_SOCKET;
  item->cmsg_type = CMSG_VMA_IOCTL_USER_ALLOC;
  item->cmsg_len = CMSG_LEN(bytes);
  std::memcpy(CMSG_DATA(item), &wish, sizeof wish);
  return error_of([&] { return api().ioctl(control.data(), CMSG_SPACE(bytes)); });
}

[[noreturn]] void receive_into_own_memory() {
  EXPECT_EQ(ask_for_memory(0, allocate), EINVAL);
  EXPECT_EQ(ask_for_memory(VMA_IOCTL_USER_ALLOC_FLAG_RX, nullptr), EINVAL);
  EXPECT_EQ(ask_for_memory(VMA_IOCTL_USER_ALLOC_FLAG_RX, allocate, 16), EINVAL);
  EXPECT_EQ(ask_for_memory(VMA_IOCTL_USER_ALLOC_FLAG_TX | VMA_IOCTL_USER_ALLOC_FLAG_RX, allocate), 0);
  const Address here("10.9.0.1", 0), echo("10.9.0.2", kEchoPort);
  const Socket socket(AF_INET);
  socket.limit_waits();
  EXPECT_EQ(::bind(socket, here.get(), here.length()), 0);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(socket.send_to(echo, "hello"), 5);
    pollfd one{socket, POLLIN, 0};
    EXPECT_EQ(::poll(&one, 1, 5000), 1);  // so that it is put into a buffer
    EXPECT_EQ(socket.receive(), "hello");
  }
  EXPECT_GT(allocated, 1500U);
  EXPECT_EQ(ask_for_memory(VMA_IOCTL_USER_ALLOC_FLAG_RX, allocate), EINVAL) << "it is too late";
  ::_exit(::testing::Test::HasFailure() ? 1 : 0);
}

TEST_F(ExtraApiDeathTest, BuffersComeFromTheApplicationsAllocator) {
  EXPECT_EXIT(receive_into_own_memory(), testing::ExitedWithCode(0), "");
}

// -- options

TEST_F(ExtraApi, ASocketKeepsItsUserDataAndItsFlowTag) {
  void* data = nullptr;
  socklen_t length = sizeof data;
  ASSERT_EQ(::getsockopt(socket_, SOL_SOCKET, SO_VMA_USER_DATA, &data, &length), 0);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data), static_cast<std::uintptr_t>(socket_));
  void* const mine = this;
  ASSERT_EQ(::setsockopt(socket_, SOL_SOCKET, SO_VMA_USER_DATA, &mine, sizeof mine), 0);
  ASSERT_EQ(::getsockopt(socket_, SOL_SOCKET, SO_VMA_USER_DATA, &data, &length), 0);
  EXPECT_EQ(data, mine);
  EXPECT_EQ(error_of([&] { return ::setsockopt(socket_, SOL_SOCKET, SO_VMA_USER_DATA, &mine, 4); }), EINVAL);

  std::uint32_t tag = 0xABCDE;
  const auto set_tag = [&](std::uint32_t value) {
    return error_of([&] { return ::setsockopt(socket_, SOL_SOCKET, SO_VMA_FLOW_TAG, &value, sizeof value); });
  };
  EXPECT_EQ(set_tag(tag), 0);
  for (const std::uint32_t bad : {0U, 0xFFFFFU, 0x100000U}) EXPECT_EQ(set_tag(bad), EINVAL) << bad;
  tag = 0;
  length = sizeof tag;
  ASSERT_EQ(::getsockopt(socket_, SOL_SOCKET, SO_VMA_FLOW_TAG, &tag, &length), 0);
  EXPECT_EQ(tag, 0xABCDEU);
}

TEST_F(ExtraApi, MemoryForRingsMustBeThere) {
  std::vector<char> memory(65536);
  const auto set = [&](void* base, std::size_t bytes) {
    const iovec value{base, bytes};
    return error_of([&] { return ::setsockopt(socket_, SOL_SOCKET, SO_VMA_RING_USER_MEMORY, &value, sizeof value); });
  };
  EXPECT_EQ(set(memory.data(), memory.size()), 0);
  EXPECT_EQ(set(nullptr, 4096), EINVAL);
  EXPECT_EQ(set(memory.data(), 0), EINVAL);
  EXPECT_EQ(set(reinterpret_cast<void*>(0x1234567890000), 4096), EFAULT);
}

TEST_F(ExtraApi, ASocketWhoseRingsBringNothingMoreReceivesByTheKernelAndSendsByRings) {
  bind_here(socket_);
  until_rings_send(socket_);
  ASSERT_EQ(::setsockopt(socket_, SOL_SOCKET, SO_VMA_SHUTDOWN_RX, nullptr, 0), 0) << std::strerror(errno);
  EXPECT_EQ(api().get_socket_rings_num(socket_), 0);
  const long received = kernels_datagrams(AF_INET), sent = kernels_sent_datagrams(AF_INET);
  for (int i = 0; i < 5; ++i) exchange(socket_, "by the kernel");
  EXPECT_EQ(kernels_datagrams(AF_INET), received + 5);
  EXPECT_EQ(kernels_sent_datagrams(AF_INET), sent);
}

TEST_F(ExtraApi, PortsOfAMapAreNoOptionOfTheKernel) {
  const in_port_t port = htons(11211);
  const auto set = [&](int name) {
    return error_of([&] { return ::setsockopt(socket_, IPPROTO_UDP, name, &port, sizeof port); });
  };
  constexpr int kAdd = 101, kRemove = 102;
  EXPECT_EQ(set(kRemove), EINVAL);
  EXPECT_EQ(set(kAdd), 0);
  EXPECT_EQ(set(kAdd), 0);
  EXPECT_EQ(set(kRemove), 0);
  EXPECT_EQ(set(kRemove), EINVAL);
  const int on = 1;  // UDP_NO_CHECK6_RX of Linux has the number, too
  EXPECT_EQ(::setsockopt(socket_, IPPROTO_UDP, kRemove, &on, sizeof on), 0) << std::strerror(errno);
}

// -- dummy sends

TEST_F(ExtraApi, ADummySendIsCountedAndNothingLeaves) {
  bind_here(socket_);
  const FarSocket far("10.9.0.2");
  until_rings_send(socket_);
  exchange(socket_, "hello");
  // The path is known once a datagram has gone there.
  ASSERT_EQ(socket_.send_to(far.name(), "first"), 5);
  ASSERT_EQ(far.receive(), "first");
  for (const std::string& data : {std::string("dummy"), std::string(), std::string(1400, 'd')})
    EXPECT_EQ(send_dummy(socket_, far.name(), data), static_cast<ssize_t>(data.size())) << std::strerror(errno);
  EXPECT_EQ(send_dummy(socket_, far.name(), "dummy", MSG_DONTWAIT | MSG_NOSIGNAL), 5);
  ASSERT_EQ(socket_.send_to(far.name(), "second"), 6);
  EXPECT_EQ(far.receive(), "second");
  EXPECT_THAT(vma_stats("-v 3 -c 1 -s " + std::to_string(static_cast<int>(socket_))),
              HasSubstr("Tx Dummy messages : 4"));
}

TEST_F(ExtraApi, ADummySendOfAConnectedSocketByEachCall) {
  const FarSocket far("10.9.0.2");
  bind_here(socket_);
  until_rings_send(socket_);
  ASSERT_EQ(::connect(socket_, far.name().get(), far.name().length()), 0);
  ASSERT_EQ(::send(socket_, "first", 5, 0), 5);
  ASSERT_EQ(far.receive(), "first");
  EXPECT_EQ(::send(socket_, "dummy", 5, VMA_SND_FLAGS_DUMMY), 5) << std::strerror(errno);
  std::string dummy = "dummy";
  iovec parts[2]{{dummy.data(), 2}, {dummy.data() + 2, 3}};
  mmsghdr many[2]{};
  for (mmsghdr& one : many) {
    one.msg_hdr.msg_iov = parts;
    one.msg_hdr.msg_iovlen = 2;
  }
  EXPECT_EQ(::sendmsg(socket_, &many[0].msg_hdr, VMA_SND_FLAGS_DUMMY), 5);
  EXPECT_EQ(::sendmmsg(socket_, many, 2, VMA_SND_FLAGS_DUMMY), 2);
  ASSERT_EQ(::send(socket_, "second", 6, 0), 6);
  EXPECT_EQ(far.receive(), "second");
}

TEST_F(ExtraApi, WhereTheKernelWouldSendADummySendFails) {
  const Socket receiver(AF_INET);
  const Address loopback("127.0.0.1", 0);
  ASSERT_EQ(::bind(receiver, loopback.get(), loopback.length()), 0);
  const Address near = receiver.name();
  EXPECT_EQ(error_of([&] { return send_dummy(socket_, near, "dummy"); }), EINVAL) << "this host";
  bind_here(socket_);
  until_rings_send(socket_);
  EXPECT_EQ(error_of([&] { return send_dummy(socket_, echo_, std::string(3000, 'd')); }), EINVAL) << "fragments";
  EXPECT_EQ(error_of([&] { return send_dummy(socket_, echo_, "dummy", MSG_MORE); }), EINVAL);

  // Sockets that the library does not carry.
  std::array<int, 2> pair{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair.data()), 0);
  EXPECT_EQ(error_of([&] { return ::send(pair[0], "dummy", 5, VMA_SND_FLAGS_DUMMY); }), EINVAL);
  EXPECT_EQ(error_of([&] { return ::sendto(pair[0], "dummy", 5, VMA_SND_FLAGS_DUMMY, nullptr, 0); }), EINVAL);
  iovec part{pair.data(), 4};
  mmsghdr message{};
  message.msg_hdr.msg_iov = &part;
  message.msg_hdr.msg_iovlen = 1;
  EXPECT_EQ(error_of([&] { return ::sendmsg(pair[0], &message.msg_hdr, VMA_SND_FLAGS_DUMMY); }), EINVAL);
  EXPECT_EQ(error_of([&] { return ::sendmmsg(pair[0], &message, 1, VMA_SND_FLAGS_DUMMY); }), EINVAL);
  char byte = 0;
  EXPECT_EQ(error_of([&] { return ::recv(pair[1], &byte, 1, MSG_DONTWAIT); }), EAGAIN) << "nothing was sent";
  for (const int fd : pair) ::close(fd);
  EXPECT_EQ(receiver.receive(nullptr, MSG_DONTWAIT), "");
}

// By librspreload it is an rsocket, which knows such sends.
TEST_F(ExtraApi, ADummySendOfAStreamFailsUnlessItIsOnAMemoryRing) {
  const char* const libraries = std::getenv("LD_PRELOAD");
  const bool is_rsocket = libraries != nullptr && std::string(libraries).find("librspreload") != std::string::npos;
  const int expected = is_rsocket ? 0 : EINVAL;
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0), alice = ::socket(AF_INET, SOCK_STREAM, 0);
  Address here("127.0.0.1", 0);
  ASSERT_EQ(::bind(listener, here.get(), here.length()), 0);
  ASSERT_EQ(::listen(listener, 1), 0);
  ASSERT_EQ(::getsockname(listener, here.get(), &here.length()), 0);
  ASSERT_EQ(::connect(alice, here.get(), here.length()), 0);
  const int bob = ::accept(listener, nullptr, nullptr);
  std::string dummy = "dummy";
  iovec part{dummy.data(), dummy.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  EXPECT_EQ(error_of([&] { return ::send(alice, dummy.data(), dummy.size(), VMA_SND_FLAGS_DUMMY); }), expected);
  EXPECT_EQ(error_of([&] { return ::sendto(alice, dummy.data(), 5, VMA_SND_FLAGS_DUMMY, nullptr, 0); }), expected);
  EXPECT_EQ(error_of([&] { return ::sendmsg(alice, &message, VMA_SND_FLAGS_DUMMY); }), expected);
  ASSERT_EQ(::send(alice, "real", 4, 0), 4);
  std::array<char, 16> room{};
  EXPECT_EQ(::recv(bob, room.data(), room.size(), 0), 4);
  EXPECT_STREQ(room.data(), "real");
  for (const int fd : {listener, alice, bob}) ::close(fd);
}

}  // namespace
}  // namespace ringsock::vma_tests
