#include "libvmacompat/udp/socket_family.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <new>

#include "core/base/at_fork.h"
#include "core/base/mutex.h"
#include "core/base/process_state.h"
#include "core/base/rare_calls.h"
#include "core/base/unique_fd.h"

namespace ringsock::vma {

namespace {

/// The pipe of the fork in progress. A child closes its writing end after all families have entered there.
struct ForkPipe {
  static constexpr ProcessPart kPart = ProcessPart::fork_pipe;
  Mutex forking;  ///< lets one fork run at a time; held across it
  std::shared_ptr<UniqueFd> reading;
  UniqueFd writing;
};
ForkPipe& fork_pipe() { return process_state<ForkPipe>(); }

void make_fork_pipe() {
  ForkPipe& pipe = fork_pipe();
  pipe.forking.lock();
  int ends[2];
  if (!is_permitted(RareCall::pipe2) || ::pipe2(ends, O_CLOEXEC) != 0) return;
  pipe.reading = std::make_shared<UniqueFd>(out_of_the_way(UniqueFd(ends[0])));
  pipe.writing = out_of_the_way(UniqueFd(ends[1]));
}
void forget_fork_pipe() {
  ForkPipe& pipe = fork_pipe();
  pipe.writing.reset();
  pipe.reading.reset();
  pipe.forking.unlock();
}

/// Returns false also for a zombie, which has ended and waits for its parent.
bool is_alive(pid_t process) {
  const bool may_ask = is_permitted(RareCall::kill);
  if (may_ask && ::kill(process, 0) != 0) return errno != ESRCH;
  std::array<char, 32> path{};
  std::snprintf(path.data(), path.size(), "/proc/%d/stat", process);
  const UniqueFd file(::open(path.data(), O_RDONLY | O_CLOEXEC));
  std::array<char, 256> text{};
  if (!file && !may_ask) return errno != ENOENT;
  if (!file || ::read(file.get(), text.data(), text.size() - 1) <= 0) return true;
  // The state follows the program's name, which may contain any character.
  const char* const name_end = std::strrchr(text.data(), ')');
  return name_end == nullptr || name_end[1] != ' ' || (name_end[2] != 'Z' && name_end[2] != 'X');
}

}  // namespace

std::shared_ptr<SocketFamily> SocketFamily::create() {
  void* const memory = ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  std::shared_ptr<Page> page(new (memory) Page{}, [](Page* mapped) { ::munmap(mapped, sizeof(Page)); });
  std::shared_ptr<SocketFamily> family(new SocketFamily(std::move(page)));
  family->enter(::getpid());
  return family;
}

void SocketFamily::install_fork_handlers() {
  static const bool installed = [] {
    at_fork(ForkStep::fork_pipe, make_fork_pipe, forget_fork_pipe, forget_fork_pipe);
    return true;
  }();
  static_cast<void>(installed);
}

std::size_t SocketFamily::enter(pid_t process) noexcept {
  std::size_t place = 0;
  for (; place < page_->members.size(); ++place) {
    pid_t free = 0;
    if (page_->members[place].compare_exchange_strong(free, process)) break;
  }
  return place;
}

void SocketFamily::before_fork() {
  look_at_births();
  const std::size_t place = enter(kUnborn);
  const std::shared_ptr<UniqueFd>& end = fork_pipe().reading;
  if (place == page_->members.size() || !end) return add_stranger();
  births_.push_back({place, end});
}

/// A child in a PID namespace of its own is a stranger: its number means nothing to the other processes.
void SocketFamily::enter_child() noexcept {
  if (births_.empty()) return;
  const bool is_stranger = ::getppid() == 0;
  if (is_stranger) add_stranger();
  page_->members[births_.back().place].store(is_stranger ? 0 : ::getpid(), std::memory_order_release);
  births_.clear();
}

void SocketFamily::look_at_births() noexcept {
  std::erase_if(births_, [this](const Birth& birth) {
    pollfd entry{birth.end->get(), POLLIN, 0};
    if (::poll(&entry, 1, 0) == 0) return false;
    pid_t unborn = kUnborn;
    page_->members[birth.place].compare_exchange_strong(unborn, 0);
    return true;
  });
}

void SocketFamily::leave() noexcept {
  const pid_t me = ::getpid();
  for (auto& member : page_->members) {
    pid_t expected = me;
    if (member.compare_exchange_strong(expected, 0)) return;
  }
}

bool SocketFamily::is_alone() noexcept {
  look_at_births();
  if (page_->strangers.load(std::memory_order_relaxed) != 0) return false;
  const pid_t me = ::getpid();
  for (auto& member : page_->members) {
    pid_t process = member.load(std::memory_order_acquire);
    if (process == 0 || process == me) continue;
    if (process == kUnborn) return false;
    const int saved_errno = errno;
    const bool alive = is_alive(process);
    errno = saved_errno;
    if (alive) return false;
    member.compare_exchange_strong(process, 0);
  }
  return true;
}

}  // namespace ringsock::vma
