#include "tests/preload/preloaded.h"
#include "tests/support/raw_syscall.h"
#include "tests/support/sanitizers.h"
#include "tests/support/thread_status.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <stdexcept>
#include <utility>

namespace ringsock::preloaded {

namespace {

[[noreturn]] void fail(const char* what) { throw std::runtime_error(std::string(what) + ": " + std::strerror(errno)); }

}  // namespace

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

namespace {

/// The sanitizers' runtimes must come before every other library, in programs that do not have them, too.
std::string with_runtimes(std::string libraries) {
  for (const char* const name : {"__ubsan_handle_type_mismatch_v1", "__asan_init"}) {
    Dl_info found{};
    void* const symbol = ::dlsym(RTLD_DEFAULT, name);
    if (symbol != nullptr && ::dladdr(symbol, &found) != 0) libraries = std::string(found.dli_fname) + ":" + libraries;
  }
  return libraries;
}

/// Starts the program anew with LD_PRELOAD set to the library under test, if it is not.
void ensure_preloaded(char** argv) {
  if (std::getenv("LD_PRELOAD") != nullptr) return;
  if (::dlsym(RTLD_DEFAULT, "__tsan_init") != nullptr) {
    std::puts("skipped: ThreadSanitizer does not support threads of forked children");
    std::exit(77);
  }
  const char* const library = std::getenv("RSPRELOAD");
  ::setenv("RINGSOCK_CONFIG_DIR", CONFIG_DIRECTORY, 1);
  ::setenv("ASAN_OPTIONS", "detect_leaks=0", 0);  // of the programs that are started
  ::setenv("LD_PRELOAD", with_runtimes(library != nullptr ? library : RSPRELOAD_LIBRARY).c_str(), 1);
  ::execv("/proc/self/exe", argv);
  std::perror("exec");
  std::exit(99);
}

}  // namespace

Listener listen_anywhere() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = loopback(0);
  socklen_t length = sizeof address;
  if (::bind(fd, reinterpret_cast<sockaddr*>(&address), length) != 0) fail("bind");
  if (::listen(fd, 128) != 0) fail("listen");
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) fail("getsockname");
  return {fd, ntohs(address.sin_port)};
}

int connect_to(std::uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in address = loopback(port);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) fail("connect");
  return fd;
}

int start_connecting(std::uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  const sockaddr_in address = loopback(port);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 && errno != EINPROGRESS)
    fail("connect");
  return fd;
}

void expect_connected(int fd) {
  pollfd entry{fd, POLLOUT, 0};
  expect(::poll(&entry, 1, 10'000) == 1 && entry.revents == POLLOUT, "connected");
  sockaddr_in peer{};
  socklen_t length = sizeof peer;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0) fail("getpeername");
}

bool is_on_ring(int fd) {
  int domain = 0;
  socklen_t length = sizeof domain;
  raw_syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_DOMAIN, &domain, &length);
  return domain == AF_UNIX;
}

bool is_off_kernel(int fd) {
  sockaddr_storage name{};
  socklen_t length = sizeof name;
  return raw_syscall(SYS_getpeername, fd, &name, &length) != 0;
}

void expect(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}

Ends::Ends() {
  const Listener listener = listen_anywhere();
  ours = connect_to(listener.port);
  peers = ::accept(listener.fd, nullptr, nullptr);
  ::close(listener.fd);
  expect(is_on_ring(ours) && is_on_ring(peers), "a connection on a ring");
}

Ends::~Ends() {
  ::close(ours);
  ::close(peers);
}

void send_all(int fd, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t sent = ::send(fd, text.data() + done, text.size() - done, MSG_NOSIGNAL);
    if (sent < 0) fail("send");
    done += static_cast<std::size_t>(sent);
  }
}

std::string receive(int fd, std::size_t bytes) {
  std::string text(bytes, '\0');
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t got = ::recv(fd, text.data() + done, bytes - done, 0);
    if (got < 0) fail("recv");
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  text.resize(done);
  return text;
}

std::string receive_all(int fd) {
  std::string all;
  for (;;) {
    std::string part = receive(fd, 4096);
    all += part;
    if (part.size() < 4096) return all;
  }
}

int error_of(long result) { return result < 0 ? errno : 0; }

void echo(int fd) {
  std::string buffer(65536, '\0');
  for (;;) {
    const ssize_t got = ::recv(fd, buffer.data(), buffer.size(), 0);
    if (got < 0) fail("recv");
    if (got == 0) return;
    send_all(fd, buffer.substr(0, static_cast<std::size_t>(got)));
  }
}

std::string pattern(std::size_t bytes, unsigned seed) {
  std::mt19937 random(seed);
  std::string text(bytes, '\0');
  for (char& byte : text) byte = static_cast<char>(random());
  return text;
}

pid_t spawn(const std::function<void()>& body) {
  if constexpr (!support::kForksWhileThreadsAllocate) support::wait_until_others_sleep();
  const pid_t child = ::fork();
  if (child < 0) fail("fork");
  if (child > 0) return child;
  int status = 0;
  try {
    body();
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "child %d: %s\n", static_cast<int>(::getpid()), failure.what());
    status = 1;
  }
  ::_exit(status);
}

int wait_for(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

StoppedServer::StoppedServer(const std::function<void(int)>& body) {
  const Listener listener = listen_anywhere();
  port_ = listener.port;
  pid_ = spawn([&] {
    ::raise(SIGSTOP);
    const int client = ::accept(listener.fd, nullptr, nullptr);
    ::close(listener.fd);
    body(client);
  });
  ::close(listener.fd);
  int status = 0;
  while (::waitpid(pid_, &status, WUNTRACED) < 0 && errno == EINTR) {
  }
  expect(WIFSTOPPED(status), "a stopped server");
}
StoppedServer::~StoppedServer() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  wait_for(pid_);
}
int StoppedServer::go_on_and_wait() {
  ::kill(pid_, SIGCONT);
  return wait_for(std::exchange(pid_, -1));
}

void use_all_descriptors(bool may_raise) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) fail("getrlimit");
  limit.rlim_cur = 80;
  if (!may_raise) limit.rlim_max = limit.rlim_cur;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) fail("setrlimit");
  while (::open("/dev/null", O_RDONLY | O_CLOEXEC) >= 0) {
  }
  if (errno != EMFILE) fail("open");
}

Signal::Signal() {
  if (::pipe(ends_) != 0) fail("pipe");
}
Signal::~Signal() {
  ::close(ends_[0]);
  ::close(ends_[1]);
}
void Signal::give() {
  if (::write(ends_[1], "!", 1) != 1) fail("signal");
}
void Signal::wait() {
  char byte = 0;
  if (::read(ends_[0], &byte, 1) != 1) fail("signal");
}

}  // namespace ringsock::preloaded

int main(int argc, char** argv) {
  ringsock::preloaded::ensure_preloaded(argv);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
