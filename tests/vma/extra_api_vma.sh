#!/bin/bash
# VMA's Extra API over libvma, also beside librspreload in either order.
built=$(pwd)/.libs here=$(dirname "$0") place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
export RINGSOCK_CONFIG_DIR=/nonexistent VMA_STATS_SHMEM_DIR=$place VMA_LOG_FILE=$place/log
for libraries in "$built/libvma.so" "$built/librspreload.so:$built/libvma.so" "$built/libvma.so:$built/librspreload.so"; do
  TWO_HOSTS_PRELOAD=$libraries "$here/two_hosts.sh" tests/vma/extra_api_test "$@" || exit
done
