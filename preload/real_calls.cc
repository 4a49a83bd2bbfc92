#include "preload/real_calls.h"

#include <dlfcn.h>

#include <cerrno>
#include <type_traits>

#include "core/base/libc_calls.h"

namespace ringsock::preload {

namespace {

void look_up_all();

// Until they are looked up, all members lead to these.
#define LIBC_CALL(result, name, parameters, arguments) \
  result first_##name parameters {                     \
    look_up_all();                                     \
    return real.name arguments;                        \
  }
#include "preload/calls.def"
#undef LIBC_CALL

/// For what this libc does not have.
template <class Result, class... Arguments>
Result missing(Arguments...) {
  errno = ENOSYS;
  if constexpr (std::is_pointer_v<Result>) {
    return nullptr;
  } else if constexpr (!std::is_void_v<Result>) {
    return -1;
  }
}

template <class Result, class... Arguments>
void look_up(Result (*&call)(Arguments...), const char* name) {
  void* const found = ::dlsym(RTLD_NEXT, name);
  call = found != nullptr ? reinterpret_cast<Result (*)(Arguments...)>(found) : &missing<Result, Arguments...>;
}

void look_up_all() {
#define LIBC_CALL(result, name, parameters, arguments) look_up(real.name, #name);
#include "preload/calls.def"
#undef LIBC_CALL
  // The core's calls must not come back to us.
#define LIBC_CALL(result, name, parameters, arguments) libc_calls.name = real.name;
#include "core/base/libc_calls.def"
#undef LIBC_CALL
  libc_calls.fcntl = reinterpret_cast<int (*)(int, int, ...)>(real.fcntl);
}

[[gnu::constructor(101)]] void start() { look_up_all(); }

}  // namespace

constinit RealCalls real{
#define LIBC_CALL(result, name, parameters, arguments) .name = &first_##name,
#include "preload/calls.def"
#undef LIBC_CALL
};

}  // namespace ringsock::preload
