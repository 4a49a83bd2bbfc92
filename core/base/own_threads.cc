#include "core/base/own_threads.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <string_view>

#include "core/base/process_state.h"
#include "core/base/rare_calls.h"
#include "core/base/unique_fd.h"

namespace ringsock {

namespace {

struct OwnThreads {
  static constexpr ProcessPart kPart = ProcessPart::own_threads;
  std::atomic<int> running{0};
};

std::atomic<int>& running() { return process_state<OwnThreads>().running; }

[[gnu::constructor]] void start() { running(); }

/// Returns whether the main thread is a zombie: proc(5), /proc/PID/stat.
bool has_main_thread_ended() {
  const UniqueFd file(::open("/proc/self/stat", O_RDONLY | O_CLOEXEC));
  std::array<char, 128> text;
  const ssize_t length = file ? ::read(file.get(), text.data(), text.size()) : -1;
  const std::string_view line(text.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
  // "number (name) state ..."; a name may contain anything.
  const auto name_end = line.rfind(") ");
  return name_end != std::string_view::npos && line.substr(name_end + 2, 1) == "Z";
}

}  // namespace

OwnThread::OwnThread() { running().fetch_add(1, std::memory_order_relaxed); }

OwnThread::~OwnThread() { running().fetch_sub(1, std::memory_order_relaxed); }

int OwnThread::count() { return running().load(std::memory_order_relaxed); }

void OwnThread::forget_after_fork() { running().store(0, std::memory_order_relaxed); }

bool has_other_threads() {
  // This directory has two links of its own and one for each thread.
  struct stat status {};
  return ::stat("/proc/self/task", &status) != 0 || static_cast<int>(status.st_nlink) - 2 > 1 + OwnThread::count();
}

bool are_only_own_threads_left() {
  // The main thread counts as the calling one here.
  return is_permitted(RareCall::newfstatat) && !has_other_threads() && has_main_thread_ended();
}

}  // namespace ringsock
