#include "core/base/late_library.h"

#include <dlfcn.h>

#include "core/base/no_cancellation.h"

namespace ringsock {

namespace {

class SavedErrno {
 public:
  SavedErrno() = default;
  SavedErrno(const SavedErrno&) = delete;
  SavedErrno& operator=(const SavedErrno&) = delete;
  ~SavedErrno() { errno = value_; }

 private:
  const int value_ = errno;
};

}  // namespace

void* LateLibrary::handle() {
  if (void* const loaded = handle_.load(std::memory_order_acquire)) return loaded;
  // Constructors of libraries may read files, which are cancellation points.
  const NoCancellation whole;
  // Two threads that load it at once get the same handle.
  void* const loaded = ::dlopen(file_, RTLD_NOW | RTLD_LOCAL);
  if (loaded != nullptr) handle_.store(loaded, std::memory_order_release);
  return loaded;
}

std::string LateLibrary::load_error() {
  const SavedErrno saved;
  if (handle() != nullptr) return {};
  const char* const why = ::dlerror();
  return why != nullptr ? why : file_;
}

void* LateLibrary::find(const char* function) {
  const SavedErrno saved;
  void* const loaded = handle();
  return loaded != nullptr ? ::dlsym(loaded, function) : nullptr;
}

}  // namespace ringsock
