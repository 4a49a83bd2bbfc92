#include "libvmacompat/process/ring_user.h"

#include <vector>

#include "core/runtime/fd_table.h"

namespace ringsock::vma {

void for_each_ring_user(void (RingUser::*visit)()) {
  std::vector<runtime::Ref> endpoints;
  runtime::fd_table().for_each(
      [&](int, runtime::Endpoint& endpoint) { endpoints.push_back(runtime::Ref::share(endpoint)); });
  for (const runtime::Ref& one : endpoints) {
    if (RingUser* const user = ring_user_of(*one)) (user->*visit)();
  }
}

}  // namespace ringsock::vma
