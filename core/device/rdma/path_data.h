// Routes of InfiniBand as applications pass them around.
#pragma once

#include <infiniband/sa.h>

#include <cstddef>
#include <span>
#include <vector>

namespace ringsock::rdma {

/// The path records that librdmacm has resolved, as struct ibv_path_data[]: what rgetsockopt(3) gives for RDMA_ROUTE,
/// in a form that RDMA_OPTION_IB_PATH takes. The first is marked as the one to use.
std::vector<std::byte> path_data_of(std::span<const ibv_sa_path_rec> records);

}  // namespace ringsock::rdma
