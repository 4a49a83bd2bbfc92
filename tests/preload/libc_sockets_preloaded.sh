#!/bin/sh
# Once more what depends on whether a thread that waits sleeps or spins. What expects a ring gives it time; what is about a
# client's patience is run apart.
here=$(dirname "$0")
run() { "$here/with_preload.sh" tests/preload/libc_sockets_test "$@"; }
[ $# -eq 0 ] || { run "$@"; exit; }
run --gtest_filter='Patience.*' || exit
RINGSOCK_TEST_CONFIG_DIR=$(cd "$here" && pwd)/patient
export RINGSOCK_TEST_CONFIG_DIR
run --gtest_filter='-Patience.*' || exit
RINGSOCK_POLLING_TIME=3600000000 run --gtest_filter='*Signal*:*Cancel*:*PartialTransfer*-Patience.*'
