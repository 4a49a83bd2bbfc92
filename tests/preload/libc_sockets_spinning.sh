#!/bin/sh
# Once more what depends on whether a thread that waits sleeps or spins.
here=$(dirname "$0")
RINGSOCK_TEST_CONFIG_DIR=$(cd "$here" && pwd)/patient RINGSOCK_POLLING_TIME=3600000000
export RINGSOCK_TEST_CONFIG_DIR RINGSOCK_POLLING_TIME
exec "$here/with_preload.sh" tests/preload/libc_sockets_test --gtest_filter='*Signal*:*Cancel*:*PartialTransfer*-Patience.*' "$@"
