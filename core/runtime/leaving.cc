#include "core/runtime/leaving.h"

#include "core/runtime/endpoint.h"
#include "core/runtime/fd_table.h"

namespace ringsock::runtime {

void leave_descriptors(Endpoint& endpoint, int fd) {
  if (endpoint.has_left_to_kernel()) return;  // the number may be another file's by now
  fd_table().let_go(fd);
  while (endpoint.has_descriptors()) {
    const auto duplicate = fd_table().number_of(endpoint);
    if (!duplicate) break;
    fd_table().let_go(*duplicate);
  }
  endpoint.leave_to_kernel();
}

}  // namespace ringsock::runtime
