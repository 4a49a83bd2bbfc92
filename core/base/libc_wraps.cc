// Linked into each of our libraries together with -Wl,--wrap=NAME for these names: their calls end up here.
#include <cstdarg>

#include "core/base/libc_calls.h"

extern "C" {
#define LIBC_CALL(result, name, parameters, arguments)           \
  [[gnu::visibility("hidden")]] result __wrap_##name parameters; \
  result __wrap_##name parameters { return ringsock::libc_calls.name arguments; }
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
}
