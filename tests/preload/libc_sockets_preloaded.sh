#!/bin/sh
# What expects a ring gives it time; what is about a client's patience is run apart.
here=$(dirname "$0")
run() { "$here/with_preload.sh" tests/preload/libc_sockets_test "$@"; }
[ $# -eq 0 ] || { run "$@"; exit; }
run --gtest_filter='Patience.*' || exit
RINGSOCK_TEST_CONFIG_DIR=$(cd "$here" && pwd)/patient
export RINGSOCK_TEST_CONFIG_DIR
run --gtest_filter='-Patience.*'
