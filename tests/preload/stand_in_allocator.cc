// In the place of an allocator that is loaded first (tcmalloc, jemalloc): its lock is held across fork(2), by handlers
// that a constructor registers.
#include <pthread.h>

#include <cstddef>

extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* block, std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);
void __libc_free(void* block);
}

namespace {

pthread_mutex_t arena = PTHREAD_MUTEX_INITIALIZER;
void lock() { ::pthread_mutex_lock(&arena); }
void unlock() { ::pthread_mutex_unlock(&arena); }

[[gnu::constructor]] void start() { ::pthread_atfork(lock, unlock, unlock); }

template <class Call>
auto locked(Call call) {
  lock();
  auto result = call();
  unlock();
  return result;
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))
EXPORTED void* malloc(std::size_t size) {
  return locked([=] { return __libc_malloc(size); });
}
EXPORTED void* calloc(std::size_t count, std::size_t size) {
  return locked([=] { return __libc_calloc(count, size); });
}
EXPORTED void* realloc(void* block, std::size_t size) {
  return locked([=] { return __libc_realloc(block, size); });
}
EXPORTED void* aligned_alloc(std::size_t alignment, std::size_t size) {
  return locked([=] { return __libc_memalign(alignment, size); });
}
EXPORTED void free(void* block) {
  lock();
  __libc_free(block);
  unlock();
}
