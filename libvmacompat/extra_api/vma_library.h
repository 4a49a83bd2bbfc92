// What libvma adds to the table of the Extra API.
#pragma once

#include "core/extra_api/api_library.h"

namespace ringsock::vma {

/// Returns the object, which lives as long as the process. Threads: any.
const ApiLibrary& vma_library();

}  // namespace ringsock::vma
