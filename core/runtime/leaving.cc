#include "core/runtime/leaving.h"

#include <optional>

#include "core/runtime/endpoint.h"
#include "core/runtime/fd_table.h"

namespace ringsock::runtime {

void leave_descriptors(Endpoint& endpoint, int fd) {
  if (endpoint.has_left_to_kernel()) return;  // the number may be another file's by now
  // `fd` may have been closed, and its number given to another file, while a duplicate stays.
  auto number = fd_table().get(fd).get() == &endpoint ? std::optional(fd) : fd_table().number_of(endpoint);
  int latest = -1;
  for (; number; number = endpoint.has_descriptors() ? fd_table().number_of(endpoint) : std::nullopt) {
    latest = *number;
    fd_table().let_go(latest);
  }
  endpoint.leave_to_kernel(latest);
}

}  // namespace ringsock::runtime
