#!/bin/sh
# libc_sockets_beside.sh {before,after}:LIBRARY [ARGUMENT...]: the calls of libc with another preload library.
here=$(dirname "$0")
RINGSOCK_TEST_OTHER_LIBRARY=$1 RINGSOCK_TEST_CONFIG_DIR=$(cd "$here" && pwd)/patient VMA_TRACELEVEL=0
export RINGSOCK_TEST_OTHER_LIBRARY RINGSOCK_TEST_CONFIG_DIR VMA_TRACELEVEL
shift
exec "$here/with_preload.sh" tests/preload/libc_sockets_test --gtest_filter='-Patience.*' "$@"
