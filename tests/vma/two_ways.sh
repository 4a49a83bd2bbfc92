#!/bin/bash
# Both preload libraries in one program with VMA_TCP=on, in either order: each stream has the way that reaches its peer.
built=$PWD/.libs here=$(dirname "$0")
export VMA_TCP=on RINGSOCK_CONFIG_DIR=/nonexistent
for libraries in "$built/librspreload.so:$built/libvma.so" "$built/libvma.so:$built/librspreload.so"; do
  TWO_HOSTS_PRELOAD=$libraries "$here/two_hosts.sh" tests/vma/two_ways_test "$@" || exit
done
