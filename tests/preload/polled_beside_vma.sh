#!/bin/sh
# The choice of memory rings where libvma is in the program, too, in either order: libvma's settings count.
here=$(dirname "$0")
export RINGSOCK_TEST_CONFIG_DIR="$here/patient" VMA_SOCKETXTREME=1 VMA_RING_ALLOCATION_LOGIC_RX=20 VMA_TCP=on
for order in before after; do
  RINGSOCK_TEST_OTHER_LIBRARY=$order:$(pwd)/.libs/libvma.so "$here/with_preload.sh" tests/preload/polled_rings_test "$@" || exit
done
