#include "core/base/libc_calls.h"

// With --wrap=close the linker takes __real_close for libc's close.
extern "C" {
#define LIBC_CALL(result, name, parameters, arguments) result __real_##name parameters;
#include "core/base/libc_calls.def"
#undef LIBC_CALL
int __real_fcntl(int fd, int command, ...);
}

namespace ringsock {

constinit LibcCalls libc_calls{
#define LIBC_CALL(result, name, parameters, arguments) .name = &__real_##name,
#include "core/base/libc_calls.def"
#undef LIBC_CALL
    .fcntl = &__real_fcntl,
};

}  // namespace ringsock
