#include "preload/fork_mode.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/base/log.h"

namespace ringsock::preload {

namespace {

/// Null: none can be had. Never closed.
sem_t* semaphore() {
  static sem_t* const opened = [] {
    sem_t* const made = ::sem_open("/rsocket_fork", O_CREAT, S_IRWXU | S_IRWXG, 1U);
    if (made != SEM_FAILED) return made;
    log_info("fork mode: semaphore /rsocket_fork: %s: without", std::strerror(errno));
    return static_cast<sem_t*>(nullptr);
  }();
  return opened;
}

int value_of(sem_t* semaphore) {
  int value = 0;
  return ::sem_getvalue(semaphore, &value) == 0 ? value : 0;
}

}  // namespace

bool is_fork_mode() {
  static const bool wanted = [] {
    const char* const text = ::secure_getenv("RDMAV_FORK_SAFE");
    return text != nullptr && std::strtol(text, nullptr, 10) != 0;
  }();
  return wanted;
}

bool ForkSection::try_enter() {
  if (inside_) return true;
  sem_t* const shared = semaphore();
  if (shared != nullptr && ::sem_trywait(shared) != 0) return false;
  inside_ = true;
  has_taken_ = shared != nullptr;
  // More than 1 would let two in: somebody was slow, and another one had put it right.
  while (shared != nullptr && value_of(shared) > 0 && ::sem_trywait(shared) == 0) {
  }
  return true;
}

void ForkSection::enter_anyway() {
  inside_ = true;
  has_taken_ = false;
}

void ForkSection::leave() {
  if (!std::exchange(inside_, false)) return;
  sem_t* const shared = semaphore();
  if (shared != nullptr && (has_taken_ || value_of(shared) == 0)) ::sem_post(shared);
}

}  // namespace ringsock::preload
