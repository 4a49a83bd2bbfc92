#include "tools/vmad_loop.h"

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <syslog.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "core/base/clock.h"

namespace ringsock::tools {

namespace {

/// What an event of the loop is for; a process by its number.
enum : std::uint64_t { kSocket = 1ULL << 32, kSegments, kSignals };
/// The most messages, or packets, between looks at the other descriptors.
constexpr int kMostAtATime = 64;
constexpr int kCapNetRaw = 13;
/// VMA's levels are one above those of syslog(3) from debug on.
constexpr int kDebugVerbosity = 5;

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un out{};
  out.sun_family = AF_UNIX;
  if (path.size() >= sizeof out.sun_path) return Error{ENAMETOOLONG, "socket"};
  std::memcpy(out.sun_path, path.c_str(), path.size() + 1);
  return out;
}

UniqueFd open_signals() {
  sigset_t ending;
  ::sigemptyset(&ending);
  ::sigaddset(&ending, SIGTERM);
  ::sigaddset(&ending, SIGINT);
  return UniqueFd(::signalfd(-1, &ending, SFD_CLOEXEC | SFD_NONBLOCK));
}

/// Returns the process that has sent a message, 0 when the kernel does not tell.
pid_t sender_of(msghdr& message) {
  for (cmsghdr* item = CMSG_FIRSTHDR(&message); item != nullptr; item = CMSG_NXTHDR(&message, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_CREDENTIALS) continue;
    ucred credentials{};
    std::memcpy(&credentials, CMSG_DATA(item), sizeof credentials);
    return credentials.pid;
  }
  return 0;
}

}  // namespace

VmadLoop::VmadLoop(const VmadOptions& options, VmadFiles files)
    : options_(options),
      files_(std::move(files)),
      events_(::epoll_create1(EPOLL_CLOEXEC)),
      signals_(open_signals()),
      resets_({.interval = options.retry_interval, .forced = options.forced_resets},
              [this](const TcpPacket& packet, std::uint32_t destination) {
                const sockaddr_in to{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {destination}, .sin_zero = {}};
                ::sendto(raw_out_.get(), packet.data(), packet.size(), MSG_DONTWAIT,
                         reinterpret_cast<const sockaddr*>(&to), sizeof to);
              }) {}

VmadLoop::~VmadLoop() {
  if (socket_) ::unlink(options_.socket.c_str());
}

Result<std::unique_ptr<VmadLoop>> VmadLoop::open(const VmadOptions& options) {
  auto files = VmadFiles::open(options.notify_directory);
  if (!files) return files.error();
  std::unique_ptr<VmadLoop> out(new VmadLoop(options, *std::move(files)));
  if (!out->events_ || !out->signals_) return Error::last("epoll_create1 or signalfd");
  out->open_raw_sockets();
  if (const Status entered = out->enter(out->signals_.get(), kSignals); !entered) return entered.error();
  out->remove_stale_files();
  // The last: whoever sees the socket sees a service that is ready.
  if (const Status opened = out->open_socket(); !opened) return opened.error();
  return out;
}

/// The lock says that no other service has the socket: one that is there was left behind.
Status VmadLoop::open_socket() {
  const auto address = address_of(options_.socket);
  if (!address) return address.error();
  UniqueFd made(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  if (!made || ::setsockopt(made.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0) return Error::last("socket");
  ::unlink(options_.socket.c_str());
  if (::bind(made.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0)
    return Error::last("bind");
  socket_ = std::move(made);
  constexpr mode_t kForAll = 0666;
  if (::chmod(options_.socket.c_str(), kForAll) != 0) return Error::last("chmod");
  return enter(socket_.get(), kSocket);
}

/// Without them, the service does all but resets.
void VmadLoop::open_raw_sockets() {
  raw_out_.reset(::socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW));
  raw_in_.reset(::socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  if (!raw_out_ || !raw_in_) log(LOG_WARNING, std::string("TCP connections cannot be reset: ") + std::strerror(errno));
}

Status VmadLoop::enter(int fd, std::uint64_t what) {
  epoll_event event{.events = EPOLLIN, .data = {.u64 = what}};
  return ::epoll_ctl(events_.get(), EPOLL_CTL_ADD, fd, &event) == 0 ? ok() : Status(Error::last("epoll_ctl"));
}

void VmadLoop::remove_stale_files() {
  for (const pid_t pid : files_.present()) {
    if (::kill(pid, 0) != 0 && errno == ESRCH) files_.remove(pid);
  }
}

// -- serving

int VmadLoop::time_left() const {
  const Nanos next = resets_.next();
  if (next == Nanos::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - monotonic_now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, INT_MAX));
}

Status VmadLoop::run() {
  while (!ends_) {
    std::array<epoll_event, 32> ready;
    const int count = ::epoll_wait(events_.get(), ready.data(), static_cast<int>(ready.size()), time_left());
    if (count < 0 && errno != EINTR) return Error::last("epoll_wait");
    for (int i = 0; i < count; ++i) serve(ready[static_cast<std::size_t>(i)].data.u64);
    resets_.go_on(monotonic_now());
    // Each segment of the host comes by this socket, so it is only looked at while an answer is expected.
    if (raw_in_ && resets_.count() == 0) ::epoll_ctl(events_.get(), EPOLL_CTL_DEL, raw_in_.get(), nullptr);
  }
  return ok();
}

void VmadLoop::serve(std::uint64_t what) {
  switch (what) {
    case kSocket: return receive_message();
    case kSegments: return receive_segments();
    case kSignals: ends_ = true; return;
    default: break;
  }
  const auto pid = static_cast<pid_t>(what);
  unwatch(pid);
  service_.has_ended(pid);
}

void VmadLoop::receive_message() {
  for (int i = 0; i < kMostAtATime; ++i) {
    std::array<std::byte, 64> room;  // longer than any message, so that a longer one is seen to be too long
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(ucred))> control;
    iovec part{room.data(), room.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t got = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0) return;
    service_.received(sender_of(message), std::span(room).first(static_cast<std::size_t>(got)));
  }
}

void VmadLoop::receive_segments() {
  for (int i = 0; i < kMostAtATime; ++i) {
    std::array<std::byte, 128> room;  // headers are enough
    const ssize_t got = ::recv(raw_in_.get(), room.data(), room.size(), MSG_DONTWAIT);
    if (got < 0) return;
    resets_.received(std::span(room).first(static_cast<std::size_t>(got)));
  }
}

// -- what the service asks for

void VmadLoop::answer(pid_t pid, std::span<const std::byte> bytes) {
  const auto client = files_.socket_of(pid);
  if (!client) return log(LOG_NOTICE, "process " + std::to_string(pid) + ": " + std::strerror(client.error().code));
  // By the file that was looked at, whatever has its name by now.
  const auto to = address_of("/proc/self/fd/" + std::to_string(client->get()));
  if (!to) return;
  ::sendto(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL,
           reinterpret_cast<const sockaddr*>(&*to), sizeof *to);
}

bool VmadLoop::watch(pid_t pid) {
  UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!process || !enter(process.get(), static_cast<std::uint64_t>(pid))) return false;
  watched_[pid] = std::move(process);
  return true;
}

void VmadLoop::unwatch(pid_t pid) { watched_.erase(pid); }

bool VmadLoop::has_raw_sockets(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  constexpr std::string_view kEffective = "CapEff:\t";
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with(kEffective)) continue;
    std::uint64_t capabilities = 0;
    std::from_chars(line.data() + kEffective.size(), line.data() + line.size(), capabilities, 16);
    return (capabilities >> kCapNetRaw & 1) != 0;
  }
  return false;
}

void VmadLoop::reset(const TcpPair& pair) {
  if (!raw_out_ || !raw_in_) return;
  if (resets_.count() == 0) static_cast<void>(enter(raw_in_.get(), kSegments));
  resets_.begin(pair, monotonic_now());
}

void VmadLoop::remove_files(pid_t pid) { files_.remove(pid); }

void VmadLoop::log(int priority, const std::string& line) {
  if (priority > LOG_NOTICE && options_.verbosity < (priority == LOG_DEBUG ? kDebugVerbosity : 3)) return;
  ::syslog(priority, "%s", line.c_str());
  if (options_.console) std::fprintf(stderr, "vmad: %s\n", line.c_str());
}

}  // namespace ringsock::tools
