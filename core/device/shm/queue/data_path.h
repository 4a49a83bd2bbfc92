// The verbs of the data path, as <infiniband/verbs.h> calls them.
#pragma once

#include <infiniband/verbs.h>

namespace ringsock::soft {

void enter_data_path(ibv_context& context);

}  // namespace ringsock::soft
