#include "core/base/of_thread.h"

#include <pthread.h>

#include <atomic>

#include "core/base/process_state.h"
#include "core/base/this_thread.h"

namespace ringsock {

namespace {

/// The value of the key only tells that the thread has something to run.
void run_all(void* /*value*/) {
  while (this_thread.last_end != nullptr) {
    ThreadEnd& end = *this_thread.last_end;
    this_thread.last_end = end.next;
    end.run(end);
  }
}

/// The key whose destructor libc runs when a thread ends.
class ThreadEnds {
 public:
  static constexpr ProcessPart kPart = ProcessPart::thread_ends;
  ThreadEnds() : has_key_(::pthread_key_create(&key_, run_all) == 0) {}
  ThreadEnds(const ThreadEnds&) = delete;
  ThreadEnds& operator=(const ThreadEnds&) = delete;
  ~ThreadEnds() { forget(); }

  bool ask() { return has_key_.load(std::memory_order_acquire) && ::pthread_setspecific(key_, this) == 0; }
  void forget() {
    if (has_key_.exchange(false)) ::pthread_key_delete(key_);
  }

 private:
  pthread_key_t key_{};
  std::atomic<bool> has_key_;
};

[[gnu::constructor]] void start() { process_state<ThreadEnds>(); }
/// A thread may end after the library was unloaded.
[[gnu::destructor]] void end() { process_state<ThreadEnds>().forget(); }

}  // namespace

bool run_at_thread_end(ThreadEnd& end) {
  if (!process_state<ThreadEnds>().ask()) return false;
  end.next = this_thread.last_end;
  this_thread.last_end = &end;
  return true;
}

}  // namespace ringsock
