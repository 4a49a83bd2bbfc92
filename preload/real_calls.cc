#include "preload/real_calls.h"

#include <dlfcn.h>
#include <fcntl.h>

#include <cerrno>
#include <type_traits>

#include "core/base/libc_calls.h"
#include "preload/shell.h"

namespace ringsock::preload {

namespace {

void look_up_all();

// The initial values of all members, until the functions are looked up.
#define LIBC_CALL(result, name, parameters, arguments) \
  result first_##name parameters {                     \
    look_up_all();                                     \
    return real.name arguments;                        \
  }
#include "preload/calls.def"
#undef LIBC_CALL

/// Takes the place of a function that this libc does not have.
template <class Result, class... Arguments>
Result missing(Arguments...) {
  errno = ENOSYS;
  if constexpr (std::is_pointer_v<Result>) {
    return nullptr;
  } else if constexpr (!std::is_void_v<Result>) {
    return -1;
  }
}

/// Returns the Shell of the next library of this project in LD_PRELOAD's order, or null. The core has a function of
/// that name, too, so that one is always found: a dlsym(3) that finds nothing allocates memory, and the caller may be
/// an allocator.
const Shell* next_shell() {
  static const auto next = reinterpret_cast<decltype(&ringsock_shell)>(::dlsym(RTLD_NEXT, "ringsock_shell"));
  return next != nullptr ? static_cast<const Shell*>(next()) : nullptr;
}

void* find_beyond(const char* name) {
  const Shell* const next = next_shell();
  void* found = next != nullptr ? next->find_beyond(name) : ::dlsym(RTLD_NEXT, name);
  // No tail call: dlsym(3) searches behind the library that it returns to.
  asm("" : "+r"(found));
  return found;
}

/// Used directly, because the name ringsock_shell may lead to another library's.
constexpr Shell this_shell{&find_beyond, &add_way, &add_rsockets};

template <class Result, class... Arguments>
void look_up(Result (*&call)(Arguments...), const char* name) {
  void* const found = find_beyond(name);
  call = found != nullptr ? reinterpret_cast<Result (*)(Arguments...)>(found) : &missing<Result, Arguments...>;
}

void look_up_all() {
#define LIBC_CALL(result, name, parameters, arguments) look_up(real.name, #name);
#include "preload/calls.def"
#undef LIBC_CALL
  // The core's own calls must not come back to this library.
#define LIBC_CALL(result, name, parameters, arguments) libc_calls.name = real.name;
#include "core/base/libc_calls.def"
#undef LIBC_CALL
  libc_calls.fcntl = reinterpret_cast<int (*)(int, int, ...)>(real.fcntl);
}

/// The constructor of a library below has often made a call already.
[[gnu::constructor(101)]] void start() {
  if (libc_calls.fcntl != reinterpret_cast<int (*)(int, int, ...)>(real.fcntl)) look_up_all();
}

}  // namespace

constinit RealCalls real{
#define LIBC_CALL(result, name, parameters, arguments) .name = &first_##name,
#include "preload/calls.def"
#undef LIBC_CALL
};

const Shell& calling_shell() {
  // In a library that was loaded by dlopen(3) the name is not found, or is the core's.
  static const auto first = reinterpret_cast<decltype(&ringsock_shell)>(::dlsym(RTLD_DEFAULT, "ringsock_shell"));
  const void* const shell = first != nullptr ? first() : nullptr;
  return shell != nullptr ? *static_cast<const Shell*>(shell) : this_shell;
}

bool is_calling_shell() { return calling_shell().find_beyond == this_shell.find_beyond; }

}  // namespace ringsock::preload

const void* ringsock_shell() { return &ringsock::preload::this_shell; }
