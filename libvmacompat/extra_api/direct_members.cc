// Members of the Extra API that put queues of a network card into the program's hands. No ring of ours does that.
#include "libvmacompat/extra_api/api_call.h"
#include "libvmacompat/extra_api/members.h"

namespace ringsock::vma::extra {

int get_ring_direct_descriptors(int, vma_mlx_hw_device_data* data) {
  return api_call([&]() -> Result<int> {
    if (data == nullptr) return Error{EINVAL, "get_ring_direct_descriptors"};
    return Error{EOPNOTSUPP, "get_ring_direct_descriptors"};
  });
}

int register_memory_on_ring(int, void*, std::size_t, std::uint32_t* key) {
  return api_call([&]() -> Result<int> {
    if (key == nullptr) return Error{EINVAL, "register_memory_on_ring"};
    return Error{EOPNOTSUPP, "register_memory_on_ring"};
  });
}

int deregister_memory_on_ring(int, void*, std::size_t) {
  return api_call([]() -> Result<int> { return Error{EOPNOTSUPP, "deregister_memory_on_ring"}; });
}

}  // namespace ringsock::vma::extra
