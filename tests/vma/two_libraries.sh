#!/bin/sh
# Both preload libraries in one program, in either order.
built=$(pwd)/.libs here=$(dirname "$0")
export RINGSOCK_CONFIG_DIR=/nonexistent
for libraries in "$built/librspreload.so:$built/libvma.so" "$built/libvma.so:$built/librspreload.so"; do
  TWO_HOSTS_PRELOAD=$libraries "$here/two_hosts.sh" tests/vma/udp_test --gtest_filter='*TwoLibraries*:*UdpSets*:*Inherited*' "$@" || exit
done
