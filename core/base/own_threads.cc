#include "core/base/own_threads.h"

#include <sys/stat.h>

#include <atomic>

#include "core/base/process_state.h"

namespace ringsock {

namespace {

struct OwnThreads {
  static constexpr ProcessPart kPart = ProcessPart::own_threads;
  std::atomic<int> running{0};
};

std::atomic<int>& running() { return process_state<OwnThreads>().running; }

[[gnu::constructor]] void start() { running(); }

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

}  // namespace ringsock
