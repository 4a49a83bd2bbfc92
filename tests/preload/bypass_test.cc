// What goes past libc: io_uring, AIO, syscall(2). Sockets that the kernel is to work on are the kernel's. Each case in
// a process of its own.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/preload/preloaded.h"
#include "tests/support/libc_aio.h"
#include "tests/support/raw_syscall.h"

extern "C" {
int io_uring_queue_init(unsigned entries, void* ring, unsigned flags);
int io_uring_submit(void* ring);
int io_uring_register_files(void* ring, const int* fds, unsigned count);
}

namespace ringsock::preloaded {
namespace {

using ringsock::testing::LibcRequest;

void require(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(what);
}

/// Fails, without a page of parameters: to have asked is enough.
void set_up_uring() { ::syscall(SYS_io_uring_setup, 1, nullptr); }

TEST(Bypass, NewConnectionsAreTheKernelsAndThoseOnARingStay) {
  const pid_t child = spawn([] {
    const Listener listener = listen_anywhere();
    const int client = connect_to(listener.port);
    const int server = ::accept(listener.fd, nullptr, nullptr);
    require(is_on_ring(client), "by ring before");
    set_up_uring();
    require(is_on_ring(client), "and still");
    send_all(client, "as before");
    require(receive(server, 9) == "as before", "data by ring");

    const Listener later = listen_anywhere();
    const int second = connect_to(later.port);
    const int accepted = ::accept(later.fd, nullptr, nullptr);
    require(!is_on_ring(second) && !is_on_ring(accepted), "by the kernel afterwards");
    send_all(second, "by the kernel");
    require(receive(accepted, 13) == "by the kernel", "data by the kernel");
  });
  EXPECT_EQ(wait_for(child), 0);
}

TEST(Bypass, AListenerAndASocketFromBeforeAreTheKernels) {
  const pid_t server = spawn([] {
    const Listener listener = listen_anywhere();
    const int undecided = ::socket(AF_INET, SOCK_STREAM, 0);
    Signal set_up;
    const pid_t client = spawn([&] {
      ::close(listener.fd);
      set_up.wait();
      const int connection = connect_to(listener.port);  // this process may use rings still
      require(!is_on_ring(connection), "nobody listens on the ring any more");
      send_all(connection, "hello");
    });
    set_up_uring();
    set_up.give();
    const int accepted = ::accept(listener.fd, nullptr, nullptr);
    require(accepted >= 0 && !is_on_ring(accepted), "a client of the kernel's");
    require(receive_all(accepted) == "hello", "its data");
    require(wait_for(client) == 0, "the client");

    sockaddr_storage name{};
    socklen_t length = sizeof name;
    require(::getsockname(listener.fd, reinterpret_cast<sockaddr*>(&name), &length) == 0, "name");
    require(::connect(undecided, reinterpret_cast<const sockaddr*>(&name), length) == 0, "connect");
    require(!is_on_ring(undecided), "the socket from before");
  });
  EXPECT_EQ(wait_for(server), 0);
}

TEST(Bypass, LiburingIsCalledAfterwards) {
  const pid_t child = spawn([] {
    require(io_uring_queue_init(17, nullptr, 4) == 1704, "the library's answer, with its arguments");
    const Listener listener = listen_anywhere();
    require(!is_on_ring(connect_to(listener.port)), "by the kernel");
  });
  EXPECT_EQ(wait_for(child), 0);
}

/// A connection whose client end the kernel is about to work on, with bytes that came before.
struct Called {
  Called() : listener(listen_anywhere()), client(connect_to(listener.port)) {
    server = ::accept(listener.fd, nullptr, nullptr);
    require(is_on_ring(client) && is_on_ring(server), "by ring");
    send_all(server, "from before, ");
  }
  void check_client_is_kernels() const {
    require(!is_on_ring(client), "the kernel's, because it is in the request");
    send_all(server, "from after");
    require(receive(client, 23) == "from before, from after", "what came before and after");
    send_all(client, "answer");
    require(receive(server, 6) == "answer", "the other direction");
  }
  Listener listener;
  int client;
  int server;
};

class Aio {
 public:
  Aio() { require(::syscall(SYS_io_setup, 4, &context_) == 0, "io_setup"); }
  void submit(iocb request) {
    iocb* requests[] = {&request};
    require(::syscall(SYS_io_submit, context_, 1, requests) == 1, "io_submit");
    io_event event{};
    require(::syscall(SYS_io_getevents, context_, 1, 1, &event, nullptr) == 1, "io_getevents");
  }

 private:
  aio_context_t context_ = 0;
};

TEST(Bypass, FilesInAioRequestsCostNoRing) {
  const pid_t child = spawn([] {
    Called call;
    Aio aio;
    const int file = ::open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    std::array<char, 4> start{};
    iocb request{};
    request.aio_lio_opcode = IOCB_CMD_PREAD;
    request.aio_fildes = static_cast<std::uint32_t>(file);
    request.aio_buf = reinterpret_cast<std::uintptr_t>(start.data());
    request.aio_nbytes = start.size();
    aio.submit(request);
    require(start[1] == 'E', "the file's bytes");
    require(is_on_ring(call.client) && is_on_ring(call.server), "still by ring");
    require(is_on_ring(connect_to(call.listener.port)), "and the next one");
  });
  EXPECT_EQ(wait_for(child), 0);
}

TEST(Bypass, AConnectionInAnAioRequestIsTheKernelsFromThen) {
  const pid_t child = spawn([] {
    const Called call;
    iocb request{};
    request.aio_lio_opcode = IOCB_CMD_POLL;
    request.aio_fildes = static_cast<std::uint32_t>(call.client);
    request.aio_buf = POLLIN;
    Aio().submit(request);
    call.check_client_is_kernels();
    require(is_on_ring(call.server), "the other end is in no request");
  });
  EXPECT_EQ(wait_for(child), 0);
}

TEST(Bypass, AConnectionThatAioWriteNamesIsTheKernelsFromThen) {
  const pid_t child = spawn([] {
    const Called call;
    char text[] = "by AIO";
    LibcRequest request(call.client, LIO_NOP, text, 6);
    require(::aio_write(&request.block) == 0 && request.result() == 6, "aio_write");
    require(!is_on_ring(call.client), "the kernel's, so that libc's threads write to the connection");
    require(receive(call.server, 6) == "by AIO", "what was written");
    call.check_client_is_kernels();
    require(is_on_ring(call.server), "the other end is in no request");
  });
  EXPECT_EQ(wait_for(child), 0);
}

TEST(Bypass, AioReadGetsWhatCameBeforeAndWaitsForMore) {
  const pid_t child = spawn([] {
    const Called call;
    char text[32] = {};
    LibcRequest before(call.client, LIO_NOP, text, 13);
    require(::aio_read(&before.block) == 0 && before.result() == 13, "aio_read");
    require(std::string(text) == "from before, ", "what came before");
    LibcRequest after(call.client, LIO_NOP, text, 5);
    require(::aio_read(&after.block) == 0, "aio_read, nothing there");
    send_all(call.server, "later");
    require(after.result() == 5 && std::string(text, 5) == "later", "what came afterwards");
  });
  EXPECT_EQ(wait_for(child), 0);
}

TEST(Bypass, ListsOfAioMoveTheConnectionsThatTheirRequestsName) {
  const pid_t child = spawn([] {
    const Called call;
    const Called other;
    char text[] = "by a list", room[13] = {};
    LibcRequest writes(call.client, LIO_WRITE, text, 9);
    LibcRequest reads(call.client, LIO_READ, room, sizeof room);
    LibcRequest nothing(other.client, LIO_NOP, text, 9);
    aiocb* const list[] = {nullptr, &nothing.block, &reads.block, &writes.block};
    require(::lio_listio(LIO_WAIT, list, 4, nullptr) == 0, "lio_listio");
    require(!is_on_ring(call.client), "the kernel's");
    require(is_on_ring(other.client), "named for nothing");
    require(writes.result() == 9 && reads.result() == 13, "both requests");
    require(std::string(room, 13) == "from before, ", "what was read");
    require(receive(call.server, 9) == "by a list", "what was written");
  });
  EXPECT_EQ(wait_for(child), 0);
}

TEST(Bypass, AioOfFilesCostsNoRing) {
  const pid_t child = spawn([] {
    const Called call;
    const int file = ::open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    char start[4] = {};
    LibcRequest request(file, LIO_READ, start, sizeof start);
    require(::aio_read(&request.block) == 0 && request.result() == 4 && start[1] == 'E', "the file's bytes");
    aiocb* const list[] = {&request.block};
    require(::lio_listio(17, list, 1, nullptr) == -1 && errno == EINVAL, "no such mode");
    require(is_on_ring(call.client) && is_on_ring(call.server), "still by ring");
    require(is_on_ring(connect_to(call.listener.port)), "and the next one");
  });
  EXPECT_EQ(wait_for(child), 0);
}

TEST(Bypass, AConnectThatIsUnderWayGoesOnByTheKernelForAio) {
  const pid_t child = spawn([] {
    const Listener listener = listen_anywhere();
    const int client = start_connecting(listener.port);
    char text[] = "hello";
    LibcRequest request(client, LIO_NOP, text, 5);
    require(::aio_write(&request.block) == 0, "aio_write");
    const int server = ::accept(listener.fd, nullptr, nullptr);
    const ssize_t written = request.result();
    require(!is_on_ring(client), "the kernel's");
    if (written < 0) send_all(client, text);
    require(receive(server, 5) == "hello", "what was written");
  });
  EXPECT_EQ(wait_for(child), 0);
}

/// As liburing lays it out: one request that the kernel has not been told of.
struct UringQueue {
  unsigned* pointers[7] = {nullptr, nullptr, &mask};
  io_uring_sqe* requests = &request;
  unsigned head = 7;
  unsigned tail = 8;
  unsigned mask = 0;
  io_uring_sqe request{};
};

TEST(Bypass, AConnectionInALiburingRequestIsTheKernelsFromThen) {
  const pid_t child = spawn([] {
    const Called file_only;
    const Called call;
    UringQueue queue;
    queue.request.opcode = IORING_OP_READ;
    queue.request.fd = STDIN_FILENO;
    require(io_uring_submit(&queue) == 1, "the library's answer");
    require(is_on_ring(call.client), "a file's request");
    queue.request.flags = IOSQE_FIXED_FILE;
    queue.request.fd = call.client;
    require(io_uring_submit(&queue) == 1 && is_on_ring(call.client), "an index, not a descriptor");
    queue.request.flags = 0;
    queue.request.opcode = IORING_OP_RECV;
    require(io_uring_submit(&queue) == 1, "the library's answer");
    call.check_client_is_kernels();
    require(is_on_ring(file_only.client), "others stay");
  });
  EXPECT_EQ(wait_for(child), 0);
}

TEST(Bypass, AConnectionThatIsRegisteredWithAUringIsTheKernelsFromThen) {
  const pid_t child = spawn([] {
    const Called call;
    const int fds[] = {-1, call.client};
    require(io_uring_register_files(nullptr, fds, 2) == 2, "the library's answer");
    call.check_client_is_kernels();
  });
  EXPECT_EQ(wait_for(child), 0);
}

TEST(Bypass, SyscallPassesSixArguments) {
  const std::size_t bytes = 4096;
  const long address = ::syscall(SYS_mmap, nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);
  ASSERT_NE(address, -1);
  *reinterpret_cast<char*>(address) = 1;
  EXPECT_EQ(::syscall(SYS_munmap, address, bytes), 0);
  EXPECT_EQ(raw_syscall(SYS_close, -1), -1);
  EXPECT_EQ(errno, EBADF);
}

// -- calls by syscall(2), as libuv makes them
// -------------------------------------------------------------------------------------------------------------------

struct Pair {
  int client, server;
};
Pair connected_pair() {
  const Listener listener = listen_anywhere();
  Pair out{connect_to(listener.port), -1};
  out.server = ::accept(listener.fd, nullptr, nullptr);
  ::close(listener.fd);
  return out;
}
Pair pair_on_ring() {
  const Pair out = connected_pair();
  EXPECT_TRUE(is_on_ring(out.client));
  return out;
}

TEST(SystemCalls, CloseEndsTheConnectionAndTheNumbersNextFileIsItsOwn) {
  const Pair pair = pair_on_ring();
  ASSERT_EQ(::syscall(SYS_close, pair.client), 0);
  char name[] = "/tmp/ringsock-bypass-XXXXXX";
  const int file = ::fcntl(::mkstemp(name), F_DUPFD, pair.client);
  ASSERT_EQ(file, pair.client);
  EXPECT_EQ(::write(file, "into the file", 13), 13);
  EXPECT_EQ(::lseek(file, 0, SEEK_END), 13);
  EXPECT_EQ(receive_all(pair.server), "");
  ::unlink(name);
  ::close(file);
  ::close(pair.server);
}

/// As runtimes do that have no libc: nobody sees it.
void close_unseen(int fd) { ASSERT_EQ(raw_syscall(SYS_close, fd), 0); }

/// Has numbers handed out until it is that one's turn.
int next_at(int number, int (*hand_out)()) {
  std::vector<int> lower;
  int got = hand_out();
  for (; got >= 0 && got < number; got = hand_out()) lower.push_back(got);
  for (const int fd : lower) ::close(fd);
  return got;
}

/// What a call that hands out the lowest number makes of the number of a socket that was closed unseen.
class UnseenCloses : public ::testing::TestWithParam<std::pair<const char*, int (*)()>> {};

TEST_P(UnseenCloses, TheNumbersNextFileIsItsOwn) {
  const Pair pair = pair_on_ring();
  const int first = std::min(pair.client, pair.server), second = std::max(pair.client, pair.server);
  close_unseen(first);
  const int next = next_at(first, GetParam().second);
  ASSERT_EQ(next, first);
  sockaddr_in name{};
  socklen_t length = sizeof name;
  EXPECT_EQ(::getpeername(next, reinterpret_cast<sockaddr*>(&name), &length), -1) << "this is no connection";
  // The peer sees an end, and nothing of what is done to the new file.
  ::signal(SIGPIPE, SIG_IGN);
  [[maybe_unused]] const ssize_t written = ::write(next, "not for the peer", 16);
  char byte = 0;
  EXPECT_LE(::recv(second, &byte, 1, 0), 0);
  ::close(next);
  ::close(second);
}

INSTANTIATE_TEST_SUITE_P(Calls, UnseenCloses,
                         ::testing::Values(std::pair{"open", +[] { return ::open("/dev/null", O_RDWR); }},
                                           std::pair{"openat", +[] { return ::openat(AT_FDCWD, "/dev/null", O_RDWR); }},
                                           std::pair{"dup", +[] { return ::dup(STDERR_FILENO); }},
                                           std::pair{"fcntl", +[] { return ::fcntl(STDERR_FILENO, F_DUPFD, 0); }},
                                           std::pair{"eventfd", +[] { return ::eventfd(0, EFD_NONBLOCK); }},
                                           std::pair{"socket", +[] { return ::socket(AF_UNIX, SOCK_STREAM, 0); }},
                                           std::pair{"tcp", +[] { return ::socket(AF_INET, SOCK_STREAM, 0); }},
                                           std::pair{"epoll", +[] { return ::epoll_create1(0); }},
                                           std::pair{"memfd", +[] { return ::memfd_create("next", 0); }},
                                           std::pair{"pipe",
                                                     +[] {
                                                       int ends[2] = {-1, -1};
                                                       if (::pipe(ends) == 0) ::close(ends[1]);
                                                       return ends[0];
                                                     }}),
                         [](const auto& info) { return std::string(info.param.first); });

TEST(UnseenCloses, AClientOfTheKernelsIsNotTakenForTheOldConnection) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  socklen_t length = sizeof name;
  const int listener = ::socket(AF_UNIX, SOCK_STREAM, 0), client = ::socket(AF_UNIX, SOCK_STREAM, 0);
  // The kernel chooses a name.
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&name), sizeof name.sun_family), 0);
  ASSERT_EQ(::listen(listener, 1), 0);
  ASSERT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&name), &length), 0);
  const Pair pair = pair_on_ring();
  std::vector<int> lower;
  for (int fd = ::eventfd(0, 0); fd < pair.client; fd = ::eventfd(0, 0)) lower.push_back(fd);
  ASSERT_EQ(::connect(client, reinterpret_cast<sockaddr*>(&name), length), 0);
  close_unseen(pair.client);
  const int next = ::accept(listener, nullptr, nullptr);
  ASSERT_EQ(next, pair.client);
  EXPECT_EQ(::write(client, "for the next", 12), 12);
  EXPECT_EQ(receive(next, 12), "for the next");
  for (const int fd : lower) ::close(fd);
  for (const int fd : {listener, client, next, pair.server}) ::close(fd);
}

TEST(UnseenCloses, ADuplicateGoesOn) {
  const Pair pair = pair_on_ring();
  const int copy = ::dup(pair.client);
  close_unseen(pair.client);
  const int next = next_at(pair.client, [] { return ::eventfd(0, EFD_NONBLOCK); });
  ASSERT_EQ(next, pair.client);
  send_all(copy, "to the server");
  EXPECT_EQ(receive(pair.server, 13), "to the server");
  send_all(pair.server, "and back");
  EXPECT_EQ(receive(copy, 8), "and back");
  ::close(copy);
  EXPECT_EQ(receive_all(pair.server), "");
  std::uint64_t count = 0;
  EXPECT_EQ(::read(next, &count, sizeof count), -1) << "nobody rang";
  ::close(next);
  ::close(pair.server);
}

TEST(SystemCalls, MoveBytes) {
  const auto [client, server] = pair_on_ring();
  char data[16] = {};
  EXPECT_EQ(::syscall(SYS_write, client, "write", 5), 5);
  EXPECT_EQ(::syscall(SYS_read, server, data, sizeof data), 5);
  EXPECT_EQ(::syscall(SYS_sendto, client, "sendto", 6, MSG_NOSIGNAL, nullptr, 0), 6);
  EXPECT_EQ(::syscall(SYS_recvfrom, server, data, sizeof data, 0, nullptr, nullptr), 6);
  iovec part{data, sizeof data};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  EXPECT_EQ(::syscall(SYS_sendmsg, client, &message, 0), 16);
  EXPECT_EQ(::syscall(SYS_readv, server, &part, 1), 16);
  EXPECT_EQ(::syscall(SYS_writev, client, &part, 1), 16);
  mmsghdr many[2]{};
  many[0].msg_hdr = many[1].msg_hdr = message;
  EXPECT_EQ(::syscall(SYS_recvmmsg, server, many, 2, MSG_DONTWAIT, nullptr), 1);
  EXPECT_EQ(::syscall(SYS_sendmmsg, client, many, 2, 0), 2);
  EXPECT_EQ(::syscall(SYS_preadv2, server, &part, 1, -1L, -1L, 0), 16);
  EXPECT_EQ(::syscall(SYS_pwritev2, client, &part, 1, -1L, -1L, 0), 16);
  EXPECT_EQ(::syscall(SYS_shutdown, client, SHUT_WR), 0);
  EXPECT_EQ(receive_all(server).size(), 32U);
  EXPECT_EQ(::syscall(SYS_fcntl, server, F_SETFL, O_NONBLOCK), 0);
  EXPECT_EQ(::syscall(SYS_fcntl, server, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
  ::close(client);
  ::close(server);
}

TEST(SystemCalls, WaitForConnections) {
  const auto [client, server] = pair_on_ring();
  pollfd one{server, POLLIN, 0};
  const timespec none{};
  const std::uint64_t mask = 0;
  EXPECT_EQ(::syscall(SYS_ppoll, &one, 1, &none, &mask, sizeof mask), 0);
  EXPECT_EQ(::syscall(SYS_ppoll, &one, 1, &none, &mask, 4), -1);
  EXPECT_EQ(errno, EINVAL);
  const auto set = static_cast<int>(::syscall(SYS_epoll_create1, EPOLL_CLOEXEC));
  epoll_event event{};
  event.events = EPOLLIN;
  ASSERT_EQ(::syscall(SYS_epoll_ctl, set, EPOLL_CTL_ADD, server, &event), 0);
  EXPECT_EQ(::syscall(SYS_epoll_pwait, set, &event, 1, 0, nullptr, 8), 0);
  send_all(client, "x");
  EXPECT_EQ(::syscall(SYS_epoll_pwait, set, &event, 1, 10'000, nullptr, 8), 1);
  EXPECT_EQ(::syscall(SYS_ppoll, &one, 1, nullptr, nullptr, 0), 1);
  fd_set readable;
  FD_ZERO(&readable);
  FD_SET(server, &readable);
  const long place_and_size[2] = {reinterpret_cast<long>(&mask), sizeof mask};
  EXPECT_EQ(::syscall(SYS_pselect6, server + 1, &readable, nullptr, nullptr, nullptr, place_and_size), 1);
  for (const int fd : {set, client, server}) ::close(fd);
}

TEST(SystemCalls, SetUpConnectionsAndCopyThem) {
  const auto listener = static_cast<int>(::syscall(SYS_socket, AF_INET, SOCK_STREAM, 0));
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof name;
  ASSERT_EQ(::syscall(SYS_bind, listener, &name, length), 0);
  ASSERT_EQ(::syscall(SYS_listen, listener, 4), 0);
  ASSERT_EQ(::syscall(SYS_getsockname, listener, &name, &length), 0);
  const auto client = static_cast<int>(::syscall(SYS_socket, AF_INET, SOCK_STREAM, 0));
  ASSERT_EQ(::syscall(SYS_connect, client, &name, length), 0);
  const auto server = static_cast<int>(::syscall(SYS_accept4, listener, nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_GE(server, 0);
  EXPECT_TRUE(is_on_ring(client));
  const auto copy = static_cast<int>(::syscall(SYS_dup, client));
  EXPECT_EQ(::syscall(SYS_dup3, server, copy, 0), copy);
  send_all(client, "to the copy");
  EXPECT_EQ(receive(copy, 11), "to the copy");
  for (const int fd : {listener, client, server, copy}) ::close(fd);
}

TEST(SystemCalls, CloseRangeLeavesAProcessThatCanConnect) {
  const pid_t child = spawn([] {
    connected_pair();
    require(::syscall(SYS_close_range, 3, ~0U, 0) == 0, "close_range");
    const auto [client, server] = connected_pair();
    send_all(client, "again");
    require(receive(server, 5) == "again", "data");
  });
  EXPECT_EQ(wait_for(child), 0);
}

}  // namespace
}  // namespace ringsock::preloaded
