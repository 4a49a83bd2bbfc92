// The library's own handlers of signals: VMA_HANDLE_SIGINTR and VMA_HANDLE_SIGSEGV.
#pragma once

#include "core/config/vma_config.h"

namespace ringsock::vma {

/// Installs those that are wanted, for signals that have no handler. The program's own ones replace them.
///
/// The first SIGINT ends the calls that wait, with EINTR, and the next one ends the program. A fault writes the calls
/// on the thread's stack to standard error, and then ends the program as it would without a handler.
void install_signal_handlers(const config::VmaConfig& config);

}  // namespace ringsock::vma
