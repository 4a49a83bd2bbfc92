#!/bin/sh
# The stories of fork(2) in programs with an allocator that was loaded before the library.
RINGSOCK_TEST_OTHER_LIBRARY=before:$(pwd)/tests/preload/.libs/libstand_in_allocator.so
RINGSOCK_TEST_CONFIG_DIR=$(cd "$(dirname "$0")" && pwd)/patient
export RINGSOCK_TEST_OTHER_LIBRARY RINGSOCK_TEST_CONFIG_DIR
exec "$(dirname "$0")/with_preload.sh" tests/preload/fork_test "$@"
