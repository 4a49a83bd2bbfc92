// VMA's Extra API: a table of functions that the program asks for by getsockopt(2).
#pragma once

#include <sys/socket.h>

#include "core/extra_api/api_library.h"

namespace ringsock::vma {

/// Has `library` complete the table unless another one does. Threads: constructors.
void offer_for_extra_api(const ApiLibrary& library);
/// Has `library` complete the table instead of the libraries that answer the option. Threads: constructors.
void prefer_for_extra_api(const ApiLibrary& library);

/// getsockopt(2) with the descriptor -1: SO_VMA_GET_API of level SOL_SOCKET stores a pointer to the table of the
/// process, which is made at the first request. Returns false for another option, or when there is too little room:
/// then the kernel answers. `value` and `length` have been checked to be writable. Threads: any.
/// @param library  completes the table unless another one is preferred
bool answer_library_option(const ApiLibrary& library, int level, int name, void* value, socklen_t* length);

/// Returns the library that has completed the table. There must be a table.
const ApiLibrary& library_of_extra_api();
/// Returns the library that has completed the table, or will; null: none is known yet.
const ApiLibrary* known_library_of_extra_api();

}  // namespace ringsock::vma
