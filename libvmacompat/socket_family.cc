#include "libvmacompat/socket_family.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <new>

#include "core/base/unique_fd.h"

namespace ringsock::vma {

namespace {

/// Not one that has ended and that its parent has not waited for.
bool is_alive(pid_t process) {
  if (::kill(process, 0) != 0) return errno != ESRCH;
  std::array<char, 32> path{};
  std::snprintf(path.data(), path.size(), "/proc/%d/stat", process);
  const UniqueFd file(::open(path.data(), O_RDONLY | O_CLOEXEC));
  std::array<char, 256> text{};
  if (!file || ::read(file.get(), text.data(), text.size() - 1) <= 0) return true;
  // The state follows the name, which may hold anything.
  const char* const name_end = std::strrchr(text.data(), ')');
  return name_end == nullptr || name_end[1] != ' ' || (name_end[2] != 'Z' && name_end[2] != 'X');
}

}  // namespace

std::shared_ptr<SocketFamily> SocketFamily::create() {
  void* const memory = ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  std::shared_ptr<Page> page(new (memory) Page{}, [](Page* mapped) { ::munmap(mapped, sizeof(Page)); });
  std::shared_ptr<SocketFamily> family(new SocketFamily(std::move(page)));
  family->enter();
  return family;
}

bool SocketFamily::enter() noexcept {
  for (auto& member : page_->members) {
    pid_t free = 0;
    if (member.compare_exchange_strong(free, ::getpid())) return true;
  }
  return false;
}

/// One in a PID namespace of its own, whose number says nothing to the others, is a stranger.
void SocketFamily::enter_child() noexcept {
  if (::getppid() != 0 && enter()) page_->entered.fetch_add(1, std::memory_order_release);
}

void SocketFamily::leave() noexcept {
  const pid_t me = ::getpid();
  for (auto& member : page_->members) {
    pid_t expected = me;
    if (member.compare_exchange_strong(expected, 0)) return;
  }
}

bool SocketFamily::is_alone() noexcept {
  const std::uint32_t entered = page_->entered.load(std::memory_order_acquire);
  if (page_->expected.load(std::memory_order_relaxed) != entered) return false;
  const pid_t me = ::getpid();
  for (auto& member : page_->members) {
    pid_t process = member.load(std::memory_order_relaxed);
    if (process == 0 || process == me) continue;
    const int saved_errno = errno;
    const bool alive = is_alive(process);
    errno = saved_errno;
    if (alive) return false;
    member.compare_exchange_strong(process, 0);
  }
  return true;
}

}  // namespace ringsock::vma
