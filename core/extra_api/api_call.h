// The way from a call of the Extra API to the library.
#pragma once

#include <cerrno>

#include "core/base/at_fork.h"
#include "core/base/posix_edge.h"
#include "core/base/result.h"
#include "core/runtime/library_call.h"

namespace ringsock::vma::extra {

/// Carries out a call of the application. `body` returns a Result<int>. Handlers of signals wait for its end. A child
/// that was made without our fork handlers may use none of the locks, and gets EIO.
template <class Body>
int api_call(Body body) {
  return runtime::as_library_call([&] {
    return to_posix([&]() -> Result<int> {
      if (!is_known_process()) return Error{EIO, "the Extra API in a copied process"};
      return body();
    });
  });
}

}  // namespace ringsock::vma::extra
