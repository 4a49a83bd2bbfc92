// InfiniBand routes in the form that applications use.
#pragma once

#include <infiniband/sa.h>

#include <cstddef>
#include <span>
#include <vector>

namespace ringsock::rdma {

/// Returns the path records that librdmacm has resolved as struct ibv_path_data[], which rgetsockopt(3) returns for
/// RDMA_ROUTE and RDMA_OPTION_IB_PATH accepts. The first is marked as the one to use.
std::vector<std::byte> path_data_of(std::span<const ibv_sa_path_rec> records);

}  // namespace ringsock::rdma
