// Linked into each of our libraries together with -Wl,--wrap=NAME for these names: their calls end up here. None of
// them is a cancellation point (no_cancellation.h).
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdarg>
#include <type_traits>

#include "core/base/libc_calls.h"
#include "core/base/no_cancellation.h"

namespace {

struct Nothing {};
/// libc's headers declare all but its cancellation points as functions that throw nothing.
template <bool throws_nothing>
using Hold = std::conditional_t<throws_nothing, Nothing, ringsock::NoCancellation>;

}  // namespace

extern "C" {
#define LIBC_CALL(result, name, parameters, arguments)            \
  [[gnu::visibility("hidden")]] result __wrap_##name parameters;  \
  result __wrap_##name parameters {                               \
    [[maybe_unused]] const Hold<noexcept(::name arguments)> hold; \
    return ringsock::libc_calls.name arguments;                   \
  }
#include "core/base/libc_calls.def"
#undef LIBC_CALL

[[gnu::visibility("hidden")]] int __wrap_fcntl(int fd, int command, ...);
int __wrap_fcntl(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  const long argument = va_arg(arguments, long);  // absent for some commands, and then not used
  va_end(arguments);
  return ringsock::libc_calls.fcntl(fd, command, argument);
}

// Cancellation points that no preload library of ours intercepts. libc's calls of each other, as eventfd_write()'s of
// write(), come by no wrap.
#define UNCANCELLED(result, name, parameters, arguments)         \
  [[gnu::visibility("hidden")]] result __wrap_##name parameters; \
  result __real_##name parameters;                               \
  result __wrap_##name parameters {                              \
    const ringsock::NoCancellation hold;                         \
    return __real_##name arguments;                              \
  }
#include "core/base/libc_uncancelled.def"
#undef UNCANCELLED
}
