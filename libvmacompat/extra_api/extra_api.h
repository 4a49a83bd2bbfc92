// VMA's Extra API: a table of functions that the program asks for by getsockopt(2).
#pragma once

#include <sys/socket.h>

namespace ringsock::vma {

/// getsockopt(2) with the descriptor -1: SO_VMA_GET_API of level SOL_SOCKET stores a pointer to the table of the
/// process. Returns false for another option, or when there is too little room: then the kernel answers. `value` and
/// `length` have been checked to be writable. Threads: any.
bool answer_library_option(int level, int name, void* value, socklen_t* length);

}  // namespace ringsock::vma
