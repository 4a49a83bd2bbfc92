#!/bin/sh
# The calls of libc with both preload libraries, in either order.
here=$(dirname "$0")
RINGSOCK_TEST_CONFIG_DIR=$(cd "$here" && pwd)/patient
export RINGSOCK_TEST_CONFIG_DIR VMA_TRACELEVEL=0
for order in before after; do
  RINGSOCK_TEST_OTHER_LIBRARY=$order:$(pwd)/.libs/libvma.so "$here/with_preload.sh" tests/preload/libc_sockets_test --gtest_filter='-Patience.*' "$@" || exit
done
