#include "libvmacompat/thread_id.h"

#include <pthread.h>
#include <unistd.h>

namespace ringsock::vma {

namespace {

// A plain word of a library that is loaded with the program: no call to find it.
__attribute__((tls_model("initial-exec"))) __thread pid_t thread_id = 0;

std::uint64_t learn_thread_id() {
  // The forking thread is another one in the child.
  static const int handler = ::pthread_atfork(nullptr, nullptr, [] { thread_id = 0; });
  static_cast<void>(handler);
  thread_id = ::gettid();
  return static_cast<std::uint64_t>(thread_id);
}

}  // namespace

std::uint64_t this_thread_id() {
  if (thread_id == 0) [[unlikely]]
    return learn_thread_id();
  return static_cast<std::uint64_t>(thread_id);
}

}  // namespace ringsock::vma
