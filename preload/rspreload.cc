// librspreload: the calls, and streams by rsockets.
#include "preload/shell.h"

namespace {
[[gnu::constructor(101)]] void join() { ringsock::preload::calling_shell().carry_streams(); }
}  // namespace
