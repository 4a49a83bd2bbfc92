// What riomap(), riowrite() and riounmap() do to memory, processes and calls that have nothing to do with them.
//
//     memory_attacks SCENARIO     prints "WRONG bytes of TOTAL ..." and ends with 0 when nothing was lost, 1 when
//     something was
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <netinet/in.h>
#include <poll.h>
#include <rdma/rsocket.h>
#include <sched.h>
#include <semaphore.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kLarge = 64 * kPage;
constexpr int kPatternRuns = 4;
constexpr int kDescriptors = 4096;

[[noreturn]] void give_up(const char* what) {
  std::printf("could not be carried out: %s: %s\n", what, std::strerror(errno));
  std::fflush(stdout);
  _exit(2);
}

void must(bool holds, const char* what) {
  if (!holds) give_up(what);
}

int fresh_socket() {
  const int fd = rsocket(AF_INET, SOCK_STREAM, 0);
  const int maps = 8;
  must(fd >= 0 && rsetsockopt(fd, SOL_RDMA, RDMA_IOMAPSIZE, &maps, sizeof maps) == 0, "rsocket");
  return fd;
}

int connect_to(const sockaddr_in& address) {
  const int socket = fresh_socket();
  must(rconnect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0, "rconnect");
  return socket;
}

struct Listener {
  int fd = fresh_socket();
  sockaddr_in address{};
  Listener() {
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    must(rbind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0 && rlisten(fd, 16) == 0 &&
             rgetsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0,
         "rlisten");
  }
  [[nodiscard]] int connect() const { return connect_to(address); }
  [[nodiscard]] int accept() const {
    const int socket = raccept(fd, nullptr, nullptr);
    must(socket >= 0, "raccept");
    return socket;
  }
};

void say(int socket, char word) { must(rsend(socket, &word, 1, 0) == 1, "rsend"); }
char hear(int socket) {
  char word = 0;
  must(rrecv(socket, &word, 1, 0) == 1, "rrecv");
  return word;
}

char* pages(std::size_t bytes, int sharing = MAP_PRIVATE) {
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, sharing | MAP_ANONYMOUS, -1, 0);
  must(at != MAP_FAILED, "mmap");
  return static_cast<char*>(at);
}

char pattern(std::size_t i) { return static_cast<char>(1 + (i * 7 + i / kPage) % 250); }
void fill(char* at, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) at[i] = pattern(i);
}
std::size_t wrong(const char* at, std::size_t bytes, std::size_t from = 0) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < bytes; ++i) count += at[i] != pattern(from + i);
  return count;
}
std::size_t count_of(const char* at, std::size_t bytes, char value) {
  return static_cast<std::size_t>(std::count(at, at + bytes, value));
}

int told(std::size_t bad, std::size_t of, const std::string& more = "") {
  std::printf("%zu bytes wrong of %zu%s\n", bad, of, more.c_str());
  return bad == 0 ? 0 : 1;
}

/// A child that is killed with its parent.
template <class Body>
pid_t child(const Body& body) {
  std::fflush(stdout);
  const pid_t pid = fork();
  must(pid >= 0, "fork");
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  _exit(body());
}

/// The child is given that long; it is killed then. Exit status, or -1.
int status_within(pid_t pid, int milliseconds) {
  int status = 0;
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  pollfd ends{pidfd, POLLIN, 0};
  const bool ended = pidfd >= 0 && poll(&ends, 1, milliseconds) == 1;
  if (!ended) kill(pid, SIGKILL);
  waitpid(pid, &status, 0);
  close(pidfd);
  return ended && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// -- 1. who is written to

/// A client that waits for "mapped", writes 'w' over the buffer at offset 0 and says "written".
int writer(const Listener& listener, std::size_t bytes) {
  const int socket = listener.connect();
  if (hear(socket) != 'm') return 3;
  const std::string text(bytes, 'w');
  static_cast<void>(riowrite(socket, text.data(), text.size(), 0, 0));
  say(socket, 'd');
  hear(socket);
  return 0;
}

/// The parent accepts and forks, the child serves. `bytes` of them: small ones go by other ways than large ones.
int forked(std::size_t bytes) {
  Listener listener;
  char* const memory = pages(bytes);
  std::memset(memory, 'p', bytes);
  int done[2];
  must(pipe(done) == 0, "pipe");
  const pid_t client = child([&] { return writer(listener, bytes); });
  const int socket = listener.accept();
  const pid_t worker = child([&] {
    if (riomap(socket, memory, bytes, PROT_WRITE, 0, 0) != 0) return 4;
    say(socket, 'm');
    hear(socket);
    const std::size_t arrived = count_of(memory, bytes, 'w');
    must(write(done[1], &arrived, sizeof arrived) == sizeof arrived, "write");
    say(socket, 'e');
    return 0;
  });
  const int served = status_within(worker, 5000);
  std::size_t arrived = 0;
  if (served == 0) must(read(done[0], &arrived, sizeof arrived) == sizeof arrived, "read");
  kill(client, SIGKILL);
  waitpid(client, nullptr, 0);
  const std::size_t overwritten = count_of(memory, bytes, 'w');
  const int result =
      told(overwritten + (bytes - arrived), bytes,
           " (" + std::to_string(overwritten) + " overwritten in the parent, " + std::to_string(arrived) +
               " arrived in the child, which " + (served == 0 ? "ended)" : "hung or failed)"));
  return served == 0 ? result : 1;
}

int forked_small() { return forked(2 * kPage); }
int forked_large() { return forked(kLarge); }

/// The process that published a row executes another program, whose memory lies at the same address.
int executed(char** argv) {
  int pipes[2];
  must(pipe(pipes) == 0, "pipe");
  const auto place = reinterpret_cast<char*>(0x200000000000);
  const pid_t server = child([&] {
    // To clients the kernel names the process that has called listen().
    const Listener listener;
    must(write(pipes[1], &listener.address, sizeof listener.address) == sizeof listener.address, "write");
    const int socket = listener.accept();
    void* const at =
        mmap(place, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    must(at == place && riomap(socket, place, 2 * kPage, PROT_WRITE, 0, 0) == 0, "riomap");
    say(socket, 'm');
    // The link outlives exec, as a leaked descriptor does.
    for (int fd = 3; fd < kDescriptors; ++fd) fcntl(fd, F_SETFD, 0);
    const std::string out = std::to_string(pipes[1]);
    execl("/proc/self/exe", argv[0], "innocent", out.c_str(), nullptr);
    return 9;
  });
  sockaddr_in address{};
  must(read(pipes[0], &address, sizeof address) == sizeof address, "read");
  const int socket = connect_to(address);
  if (hear(socket) != 'm') return 2;
  char ready = 0;
  must(read(pipes[0], &ready, 1) == 1, "the other program starts");
  const std::string text(2 * kPage, 'w');
  for (int i = 0; i < kPatternRuns; ++i) static_cast<void>(riowrite(socket, text.data(), text.size(), 0, MSG_DONTWAIT));
  kill(server, SIGUSR1);
  std::size_t bad = 0;
  must(read(pipes[0], &bad, sizeof bad) == sizeof bad, "the other program ends");
  waitpid(server, nullptr, 0);
  return told(bad, 2 * kPage);
}

/// What executed() becomes: other memory at that address.
int innocent(char** argv) {
  auto* const place = reinterpret_cast<char*>(0x200000000000);
  const int out = std::atoi(argv[2]);
  mmap(place, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  fill(place, 2 * kPage);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGUSR1);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  must(write(out, "r", 1) == 1, "write");
  int which = 0;
  sigwait(&signals, &which);
  const std::size_t bad = wrong(place, 2 * kPage);
  must(write(out, &bad, sizeof bad) == sizeof bad, "write");
  return 0;
}

/// A process with this number, which must be free. Root only.
pid_t fork_as(pid_t wanted) {
  std::fflush(stdout);
  clone_args arguments{};
  arguments.exit_signal = SIGCHLD;
  arguments.set_tid = reinterpret_cast<std::uint64_t>(&wanted);
  arguments.set_tid_size = 1;
  return static_cast<pid_t>(syscall(SYS_clone3, &arguments, sizeof arguments));
}

/// The process that published a row ends; a child of it keeps the link; another process gets its number.
int number_reused() {
  int pipes[2];
  must(pipe(pipes) == 0, "pipe");
  auto* const place = reinterpret_cast<char*>(0x200000000000);
  const auto map_place = [&] {
    void* const at =
        mmap(place, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    must(at == place, "mmap");
  };
  const pid_t server = child([&] {
    // To clients the kernel names the process that has called listen().
    const Listener listener;
    must(write(pipes[1], &listener.address, sizeof listener.address) == sizeof listener.address, "write");
    const int socket = listener.accept();
    map_place();
    must(riomap(socket, place, 2 * kPage, PROT_WRITE, 0, 0) == 0, "riomap");
    say(socket, 'm');
    if (fork() == 0) {
      sleep(5);
      _exit(0);
    }
    return 0;
  });
  sockaddr_in address{};
  must(read(pipes[0], &address, sizeof address) == sizeof address, "read");
  const int socket = connect_to(address);
  if (hear(socket) != 'm') return 2;
  waitpid(server, nullptr, 0);
  const pid_t other = fork_as(server);
  if (other < 0) give_up("clone3 with set_tid");
  if (other == 0) {
    map_place();
    fill(place, 2 * kPage);
    must(write(pipes[1], "r", 1) == 1, "write");
    sleep(1);
    const std::size_t bad = wrong(place, 2 * kPage);
    must(write(pipes[1], &bad, sizeof bad) == sizeof bad, "write");
    _exit(0);
  }
  char ready = 0;
  must(read(pipes[0], &ready, 1) == 1, "read");
  const std::string text(2 * kPage, 'w');
  for (int i = 0; i < kPatternRuns; ++i) static_cast<void>(riowrite(socket, text.data(), text.size(), 0, MSG_DONTWAIT));
  std::size_t bad = 0;
  must(read(pipes[0], &bad, sizeof bad) == sizeof bad, "read");
  waitpid(other, nullptr, 0);
  return told(bad, 2 * kPage);
}

// -- 2. mapped memory and what else the program does with it

/// A connection in one process: `mapper` maps memory for `writer`.
struct Pair {
  Listener listener;
  int writer = -1, mapper = -1;
  Pair() {
    // riomap() shares pages with another process only.
    to_child = child([this] {
      const int socket = listener.connect();
      const std::string text(kLarge, 'w');
      char* const ours = pages(kLarge);
      must(riomap(socket, ours, kLarge, PROT_WRITE, 0, 0) == 0, "riomap");
      say(socket, 'm');
      for (;;) {
        const char word = hear(socket);
        if (word == 'e') return 0;
        if (word == 'w') static_cast<void>(riowrite(socket, text.data(), kPage, 0, 0));
        say(socket, 'k');
      }
    });
    mapper = listener.accept();
    hear(mapper);
  }
  ~Pair() {
    kill(to_child, SIGKILL);
    waitpid(to_child, nullptr, 0);
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;
  /// The peer has written its 'w' over the first page, so it has opened whatever it opens.
  void let_write() const {
    say(mapper, 'w');
    hear(mapper);
  }
  pid_t to_child = -1;
};

void map(const Pair& pair, void* memory, std::size_t bytes) {
  must(riomap(pair.mapper, memory, bytes, PROT_WRITE, 0, 0) == 0, "riomap");
  pair.let_write();
}

int mprotect_half() {
  Pair pair;
  char* const memory = pages(kLarge);
  fill(memory, kLarge);
  map(pair, memory, kLarge);
  must(mprotect(memory + kLarge / 2, kLarge / 2, PROT_READ) == 0, "mprotect");
  must(riounmap(pair.mapper, memory, kLarge) == 0, "riounmap");
  const std::size_t arrived = count_of(memory, kPage, 'w');
  return told(wrong(memory + kPage, kLarge - kPage, kPage) + (kPage - arrived), kLarge);
}

int mremap_all() {
  Pair pair;
  char* const memory = pages(kLarge);
  fill(memory, kLarge);
  map(pair, memory, kLarge);
  void* const moved = mremap(memory, kLarge, 4 * kLarge, MREMAP_MAYMOVE);
  must(moved != MAP_FAILED, "mremap");
  riounmap(pair.mapper, memory, kLarge);
  return told(wrong(static_cast<char*>(moved) + kPage, kLarge - kPage, kPage), kLarge);
}

int realloc_all() {
  Pair pair;
  constexpr std::size_t kBytes = 4 * kLarge;
  auto* const memory = static_cast<char*>(std::malloc(kBytes));
  fill(memory, kBytes);
  map(pair, memory, kBytes);
  volatile std::uintptr_t before = reinterpret_cast<std::uintptr_t>(memory);  // compilers know what realloc() does
  auto* const grown = static_cast<char*>(std::realloc(memory, 8 * kBytes));
  must(grown != nullptr, "realloc");
  riounmap(pair.mapper, reinterpret_cast<void*>(before), kBytes);
  return told(wrong(grown + kPage, kBytes - kPage, kPage), kBytes);
}

/// A process with our memory that reads a file into it, past the page cache, piece by piece, again and again. The file
/// has two contents, one behind the other, which take turns.
struct DirectReader {
  static constexpr std::size_t kPieces = 16, kPiece = 512 << 10, kBytes = kPieces * kPiece;
  int file;
  char* memory;
  std::atomic<std::size_t> reads{0};
  std::atomic<bool> over{false};

  static int body(void* argument) {
    DirectReader& self = *static_cast<DirectReader*>(argument);
    for (; !self.over.load(); ++self.reads) {
      const std::size_t piece = self.reads % kPieces;
      const std::size_t at = piece * kPiece, from = at + kBytes * (self.reads / kPieces % 2);
      if (pread(self.file, self.memory + at, kPiece, static_cast<off_t>(from)) != static_cast<ssize_t>(kPiece))
        return 1;
    }
    return 0;
  }
  /// Bytes that are not what the last read of their piece brought.
  [[nodiscard]] std::size_t lost(const char* file_contents) const {
    std::size_t bad = 0;
    for (std::size_t read = reads - kPieces; read < reads; ++read) {
      const std::size_t at = read % kPieces * kPiece;
      const char* const wanted = file_contents + at + kBytes * (read / kPieces % 2);
      for (std::size_t i = 0; i < kPiece; ++i) bad += memory[at + i] != wanted[i];
    }
    return bad;
  }
};

/// riomap() is called while direct reads are under way: what they bring must be there.
int direct_io(const char* path) {
  Pair pair;
  constexpr std::size_t kBytes = DirectReader::kBytes;
  constexpr int kRuns = 30;
  const int file = open(path, O_RDWR | O_CREAT | O_DIRECT, 0600);
  must(file >= 0, "open O_DIRECT");
  char* const source = pages(2 * kBytes);
  fill(source, kBytes);
  for (std::size_t i = 0; i < kBytes; ++i) source[kBytes + i] = static_cast<char>(~source[i]);
  must(write(file, source, 2 * kBytes) == static_cast<ssize_t>(2 * kBytes), "write");
  std::size_t bad = 0;
  for (int run = 0; run < kRuns; ++run) {
    DirectReader reader{file, pages(kBytes)};
    std::vector<char> stack(1 << 16);
    const pid_t pid =
        clone(DirectReader::body, stack.data() + stack.size() - 16, CLONE_VM | CLONE_FILES | SIGCHLD, &reader);
    must(pid > 0, "clone");
    while (reader.reads.load() < DirectReader::kPieces + static_cast<std::size_t>(run) % DirectReader::kPieces)
      sched_yield();
    const bool mapped = riomap(pair.mapper, reader.memory, kBytes, PROT_WRITE, 0, 0) == 0;
    reader.over.store(true);
    int status = 0;
    waitpid(pid, &status, 0);
    must(WIFEXITED(status) && WEXITSTATUS(status) == 0, "pread");
    bad += reader.lost(source);
    if (mapped) riounmap(pair.mapper, reader.memory, kBytes);
    munmap(reader.memory, kBytes);
  }
  return told(bad, kRuns * kBytes, " in " + std::to_string(kRuns) + " times");
}

/// A semaphore that is shared with a child by another mapping of the same pages; MAP_SHARED is never moved, so the
/// waiter is a thread-like child with the same memory, and the word is used without FUTEX_PRIVATE_FLAG.
int shared_futex() {
  Pair pair;
  int lost = 0;
  constexpr int kRuns = 5;
  for (int run = 0; run < kRuns; ++run) {
    char* const memory = pages(kLarge);
    std::memset(memory, 1, kLarge);
    auto* const semaphore = reinterpret_cast<sem_t*>(memory + kLarge / 2);
    must(sem_init(semaphore, 1, 0) == 0, "sem_init");
    std::vector<char> stack(1 << 16);
    const auto body = [](void* argument) {
      timespec limit{};
      clock_gettime(CLOCK_REALTIME, &limit);
      limit.tv_sec += 2;
      return sem_timedwait(static_cast<sem_t*>(argument), &limit) == 0 ? 0 : 1;
    };
    const pid_t waiter = clone(body, stack.data() + stack.size() - 16, CLONE_VM | SIGCHLD, semaphore);
    must(waiter > 0, "clone");
    const std::string wchan = "/proc/" + std::to_string(waiter) + "/wchan";
    for (int look = 0; look < 1000; ++look) {
      char where[64] = {};
      const int file = open(wchan.c_str(), O_RDONLY);
      const ssize_t got = read(file, where, sizeof where - 1);
      close(file);
      if (got > 0 && std::strstr(where, "futex") != nullptr) break;
      usleep(1000);
    }
    map(pair, memory, kLarge);
    sem_post(semaphore);
    int status = 0;
    waitpid(waiter, &status, 0);
    lost += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    riounmap(pair.mapper, memory, kLarge);
    munmap(memory, kLarge);
  }
  std::printf("%d of %d waiters never woke\n", lost, kRuns);
  return lost == 0 ? 0 : 1;
}

// -- 3. calls after fork() and system()

/// The named call must end within seconds. What it returns does not matter here.
template <class Prepare, class Call>
int ends(const Prepare& prepare, const Call& call) {
  const pid_t victim = child([&] {
    Pair pair;
    char* const memory = pages(kLarge);
    fill(memory, kLarge);
    map(pair, memory, kLarge);
    prepare();
    call(pair, memory);
    return 0;
  });
  const int status = status_within(victim, 3000);
  std::printf("%s\n", status == 0  ? "the call ended"
                      : status < 0 ? "the call did not end within 3 s"
                                   : "the victim failed");
  return status == 0 ? 0 : 1;
}

void fork_once() {
  const pid_t pid = fork();
  if (pid == 0) _exit(0);
  waitpid(pid, nullptr, 0);
}
/// The child lives on, and has its copy of everything.
void fork_and_keep() {
  static_cast<void>(child([] {
    pause();
    return 0;
  }));
}
void run_command() { static_cast<void>(!std::system(":")); }

void unmap_call(const Pair& pair, char* memory) { must(riounmap(pair.mapper, memory, kLarge) == 0, "riounmap"); }
void map_call(const Pair& pair, char*) {
  char* const more = pages(kLarge);
  riomap(pair.mapper, more, kLarge, PROT_WRITE, 0, kLarge);
}
void write_call(const Pair& pair, char*) {
  const std::string text(kLarge, 'v');
  must(riowrite(pair.mapper, text.data(), text.size(), 0, 0) == text.size(), "riowrite");
}
void shutdown_call(const Pair& pair, char*) { rshutdown(pair.mapper, SHUT_RDWR); }
void close_call(const Pair& pair, char*) { rclose(pair.mapper); }
void option_call(const Pair& pair, char*) {
  int value = 0;
  socklen_t length = sizeof value;
  rgetsockopt(pair.mapper, SOL_SOCKET, SO_ERROR, &value, &length);
  rfcntl(pair.mapper, F_SETFL, rfcntl(pair.mapper, F_GETFL, 0) | O_NONBLOCK);
}
void poll_call(const Pair& pair, char*) {
  pollfd one{pair.mapper, POLLIN | POLLOUT, 0};
  rpoll(&one, 1, 100);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "";
  prctl(PR_SET_DUMPABLE, 1);
  if (what == "forked-small") return forked_small();
  if (what == "forked-large") return forked_large();
  if (what == "executed") return executed(argv);
  if (what == "number-reused") return number_reused();
  if (what == "innocent") return innocent(argv);
  if (what == "mprotect") return mprotect_half();
  if (what == "mremap") return mremap_all();
  if (what == "realloc") return realloc_all();
  if (what == "direct-io" && argc > 2) return direct_io(argv[2]);
  if (what == "shared-futex") return shared_futex();
  if (what == "fork-riounmap") return ends(fork_once, unmap_call);
  if (what == "fork-riomap") return ends(fork_once, map_call);
  if (what == "fork-riowrite") return ends(fork_once, write_call);
  if (what == "kept-riounmap") return ends(fork_and_keep, unmap_call);
  if (what == "kept-riowrite") return ends(fork_and_keep, write_call);
  if (what == "system-riounmap") return ends(run_command, unmap_call);
  if (what == "system-riowrite") return ends(run_command, write_call);
  if (what == "fork-rshutdown") return ends(fork_once, shutdown_call);
  if (what == "fork-rclose") return ends(fork_once, close_call);
  if (what == "fork-options") return ends(fork_once, option_call);
  if (what == "fork-rpoll") return ends(fork_once, poll_call);
  std::fprintf(stderr, "memory_attacks: unknown scenario\n");
  return 2;
}
