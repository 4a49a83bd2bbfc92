#!/bin/bash
# SO_MAX_PACING_RATE over libvma.
built=$(pwd)/.libs here=$(dirname "$0") place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
export RINGSOCK_CONFIG_DIR=/nonexistent VMA_STATS_SHMEM_DIR=$place TWO_HOSTS_PRELOAD=$built/libvma.so
"$here/two_hosts.sh" tests/vma/pacing_test "$@"
