#include "libvmacompat/process/agent_client.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "core/base/log.h"
#include "libvmacompat/agent/messages.h"

namespace ringsock::vma {

namespace {

constexpr std::uint32_t kLibraryVersion = agent::library_version(9, 8, 8, 4);

std::optional<sockaddr_un> address_of(std::string_view path) {
  sockaddr_un out{};
  out.sun_family = AF_UNIX;
  if (path.size() >= sizeof out.sun_path) return std::nullopt;
  std::copy(path.begin(), path.end(), out.sun_path);
  return out;
}
const sockaddr* generic(const sockaddr_un& address) { return reinterpret_cast<const sockaddr*>(&address); }

}  // namespace

std::string AgentClient::file(const char* suffix) const {
  return directory_ + "/vma_agent." + std::to_string(pid_) + suffix;
}

void AgentClient::begin() {
  const int saved_errno = errno;
  const int fd = introduce_once();
  errno = saved_errno;
  if (fd < 0) return;
  const auto watch = runtime::service_thread().watch(fd, EPOLLIN, [this](std::uint32_t) { receive_answer(); });
  if (watch) watch_.store(*watch);
}

/// Returns the socket on which the answer comes, -1 when none is expected.
int AgentClient::introduce_once() {
  const std::lock_guard guard(lock_);
  if (directory_.empty() || pid_ == ::getpid()) return -1;
  pid_ = ::getpid();
  watch_.store(0);  // a parent's watch has not come with fork(2)
  const Status done = introduce();
  if (done) return socket_.get();
  log_debug("vmad is not told of this process: %s: %s", done.error().where, std::strerror(done.error().code));
  socket_.reset();
  pid_file_.reset();
  return -1;
}

/// lock_ held.
Status AgentClient::introduce() {
  const auto service = address_of(agent::kServiceSocket), own = address_of(file(".sock"));
  if (!own) return Error{ENAMETOOLONG, "VMA_VMAD_NOTIFY_DIR"};
  socket_ = out_of_the_way(UniqueFd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
  if (!socket_) return Error::last("socket");
  // First, so that no files are made where there is no service.
  if (::connect(socket_.get(), generic(*service), sizeof *service) != 0) return Error::last("connect");
  ::unlink(own->sun_path);  // of an earlier process of this number, or of the program that has executed this one
  if (::bind(socket_.get(), generic(*own), sizeof *own) != 0) return Error::last("bind");
  pid_file_ = out_of_the_way(
      UniqueFd(::open(file(".pid").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644)));
  if (!pid_file_) return Error::last("open");
  const auto init = agent::encode({.pid = pid_, .body = agent::Init{kLibraryVersion}});
  if (::send(socket_.get(), init.bytes.data(), init.size, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) return Error::last("send");
  return ok();
}

/// Runs on the service thread. What comes is only told: nothing depends on it.
void AgentClient::receive_answer() {
  std::array<std::byte, 64> room;
  const ssize_t got = ::recv(socket_.get(), room.data(), room.size(), MSG_DONTWAIT);
  if (got < 0 && errno == EAGAIN) return;
  const Status answer = got < 0 ? Status(Error::last("recv"))
                                : agent::parse_init_answer(std::span(room).first(static_cast<std::size_t>(got)), pid_);
  log_debug("vmad: %s", answer ? "knows this process" : std::strerror(answer.error().code));
  // One answer is expected.
  runtime::service_thread().unwatch(watch_.exchange(0));
}

void AgentClient::tell(const agent::State& connection) noexcept {
  // What has ended is told only if that needs no waiting: a process that ends may have the lock for ever.
  std::unique_lock guard(lock_, std::defer_lock);
  if (connection.state != agent::State::kClosed) {
    guard.lock();
  } else if (!guard.try_lock()) {
    return;
  }
  if (pid_ != ::getpid() || !socket_) return;
  const int saved_errno = errno;
  const auto message = agent::encode({.pid = pid_, .body = connection});
  ::send(socket_.get(), message.bytes.data(), message.size, MSG_DONTWAIT | MSG_NOSIGNAL);
  errno = saved_errno;
}

void AgentClient::end() noexcept {
  // No lock: another thread may have it and never give it back.
  if (pid_ != ::getpid() || !socket_) return;
  const auto exit = agent::encode({.pid = pid_, .body = agent::Exit{}});
  ::send(socket_.get(), exit.bytes.data(), exit.size, MSG_DONTWAIT | MSG_NOSIGNAL);
  ::unlink(file(".sock").c_str());
  ::unlink(file(".pid").c_str());
}

}  // namespace ringsock::vma
