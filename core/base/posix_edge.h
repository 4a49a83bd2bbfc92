// The one place where a Result turns into -1 and errno.
#pragma once

#include <cerrno>
#include <new>

#include "core/base/result.h"

namespace ringsock {

/// Runs `body` and translates its Result for a C caller. On success errno stays as the application left it.
/// No catch (...): it would swallow pthread cancellation.
template <class Body>
[[gnu::always_inline]] inline auto to_posix(Body&& body) {
  using Value = typename decltype(body())::value_type;
  using Ret = std::conditional_t<std::is_void_v<Value>, int, Value>;
  const int saved_errno = errno;
  int code = ENOMEM;
  try {
    auto result = body();
    if (result) {
      errno = saved_errno;
      if constexpr (std::is_void_v<Value>) {
        return Ret{0};
      } else {
        return Ret{*result};
      }
    }
    code = result.error().code;
  } catch (const std::bad_alloc&) {
  }
  errno = code;
  return static_cast<Ret>(-1);
}

}  // namespace ringsock
