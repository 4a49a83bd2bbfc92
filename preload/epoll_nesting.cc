#include "preload/epoll_nesting.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string_view>
#include <vector>

#include "core/base/at_fork.h"
#include "core/base/mutex.h"
#include "core/base/own_threads.h"
#include "core/base/process_state.h"
#include "core/base/rare_calls.h"
#include "core/poll/epoll_set.h"
#include "core/runtime/fd_table.h"
#include "core/runtime/library_call.h"
#include "preload/real_calls.h"

namespace ringsock::preload {

namespace {

struct Made {
  std::uint64_t set;  ///< the same for all descriptors of a set
  pid_t process;      ///< the process that made it
};
/// Numbers that were epoll sets once. Whether they still are is asked of the kernel.
struct KnownSets {
  static constexpr ProcessPart kPart = ProcessPart::known_epoll_sets;
  std::atomic<bool> are_any{false};
  Mutex lock;
  std::map<int, Made> by_number;
  std::uint64_t last = 0;  ///< Made::set of the newest
};
KnownSets& sets() { return process_state<KnownSets>(); }
[[gnu::constructor]] void start() { hold_across_fork(sets().lock); }

std::vector<int> others_than(int epoll_fd) {
  const std::lock_guard guard(sets().lock);
  std::vector<int> out;
  for (const auto& [fd, made] : sets().by_number) {
    if (fd != epoll_fd) out.push_back(fd);
  }
  return out;
}

/// Returns how `inner` is registered in the kernel's set `outer` (proc_pid_fdinfo(5)), or nothing when it is not, or
/// `outer` is no set.
std::optional<epoll_event> registration_of(int inner, int outer) {
  std::array<char, 64> path{};
  std::snprintf(path.data(), path.size(), "/proc/self/fdinfo/%d", outer);
  const std::unique_ptr<FILE, int (*)(FILE*)> info(std::fopen(path.data(), "rce"), &std::fclose);
  std::array<char, 256> line{};
  while (info && std::fgets(line.data(), static_cast<int>(line.size()), info.get()) != nullptr) {
    int member = -1;
    std::uint32_t events = 0;
    std::uint64_t data = 0;
    if (std::sscanf(line.data(), "tfd: %d events: %" SCNx32 " data: %" SCNx64, &member, &events, &data) == 3 &&
        member == inner) {
      return epoll_event{events, {.u64 = data}};
    }
  }
  return std::nullopt;
}

bool is_epoll_file(int fd) {
  std::array<char, 32> link{}, target{};
  std::snprintf(link.data(), link.size(), "/proc/self/fd/%d", fd);
  return ::readlink(link.data(), target.data(), target.size() - 1) > 0 &&
         std::string_view(target.data()) == "anon_inode:[eventpoll]";
}

/// The relatives of a set that has not been adopted yet.
struct Relatives {
  std::vector<int> copies;    ///< its other descriptors in this process
  bool is_inherited = false;  ///< whether it was made before a fork(2), so that the parent may wait on it
};
Relatives relatives_of(int epoll_fd) {
  Relatives out;
  const std::lock_guard guard(sets().lock);
  const auto own = sets().by_number.find(epoll_fd);
  if (own == sets().by_number.end()) return out;
  out.is_inherited = own->second.process != ::getpid();
  for (const auto& [fd, made] : sets().by_number) {
    const bool is_copy = fd != epoll_fd && made.set == own->second.set && !runtime::fd_table().holds(fd);
    if (is_copy && is_epoll_file(fd)) out.copies.push_back(fd);
  }
  return out;
}

/// Makes a member of the kernel's file of `outer` one of the set of ours around it.
Status take_over(int inner, int outer, const epoll_event& registration) {
  if (Status adopted = adopt_epoll_set(outer); !adopted) return adopted;
  if (real.epoll_ctl(outer, EPOLL_CTL_DEL, inner, nullptr) != 0) return Error::last("epoll_ctl");
  return runtime::epoll_control(outer, EPOLL_CTL_ADD, inner, &registration);
}

}  // namespace

void note_epoll_set(int epoll_fd) noexcept {
  if (epoll_fd < 0 || !is_known_process()) return;
  const int saved_errno = errno;
  const runtime::LibraryCall no_handlers;
  try {
    KnownSets& known = sets();
    const std::lock_guard guard(known.lock);
    known.are_any.store(true, std::memory_order_relaxed);
    known.by_number[epoll_fd] = {++known.last, ::getpid()};
  } catch (const std::bad_alloc&) {
    // Only sets that are members of others need it.
  }
  errno = saved_errno;
}

bool is_inherited_set(int epoll_fd) {
  if (!sets().are_any.load(std::memory_order_relaxed)) return false;
  const std::lock_guard guard(sets().lock);
  const auto known = sets().by_number.find(epoll_fd);
  return known != sets().by_number.end() && known->second.process != ::getpid();
}

void note_copy(int fd, int copy) noexcept {
  if (copy < 0 || copy == fd || !sets().are_any.load(std::memory_order_relaxed) || !is_known_process()) return;
  const int saved_errno = errno;
  const runtime::LibraryCall no_handlers;
  try {
    const std::lock_guard guard(sets().lock);
    if (const auto known = sets().by_number.find(fd); known != sets().by_number.end()) {
      sets().by_number[copy] = known->second;
    } else {
      sets().by_number.erase(copy);
    }
  } catch (const std::bad_alloc&) {
  }
  errno = saved_errno;
}

Status adopt_epoll_set(int epoll_fd) {
  const Relatives relatives = relatives_of(epoll_fd);
  // A child, or who has got the set by SCM_RIGHTS, may wait on it and does not know of its adoption. Where this process
  // has no other thread that may be sleeping on it, nothing is put into the kernel's file.
  const bool is_shared = relatives.is_inherited || (is_permitted(RareCall::newfstatat) && !has_other_threads());
  if (Status adopted = runtime::EpollSet::adopt(epoll_fd, relatives.copies, is_shared); !adopted) return adopted;
  for (const int outer : others_than(epoll_fd)) {
    const auto registration = registration_of(epoll_fd, outer);
    if (!registration) continue;
    if (Status taken = take_over(epoll_fd, outer, *registration); !taken) return taken;
  }
  return ok();
}

}  // namespace ringsock::preload
