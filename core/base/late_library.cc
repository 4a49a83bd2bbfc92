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

/// The dynamic linker remembers the library, and gives the same handle again.
void* LateLibrary::handle() const {
  // Constructors of libraries may read files, which are cancellation points.
  const NoCancellation whole;
  return ::dlopen(file_, RTLD_NOW | RTLD_LOCAL);
}

std::string LateLibrary::load_error() const {
  const SavedErrno saved;
  if (handle() != nullptr) return {};
  const char* const why = ::dlerror();
  return why != nullptr ? why : file_;
}

void* LateLibrary::find(const char* function) const {
  const SavedErrno saved;
  void* const loaded = handle();
  return loaded != nullptr ? ::dlsym(loaded, function) : nullptr;
}

}  // namespace ringsock
