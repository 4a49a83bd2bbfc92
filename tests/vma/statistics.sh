#!/bin/bash
# What libvma tells of its sockets, and rings of threads: statistics_test in three rounds.
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
export TWO_HOSTS_PRELOAD=$PWD/.libs/libvma.so
export VMA_STATS_SHMEM_DIR=$place VMA_STATS_FILE=$place/sockets VMA_LOG_FILE=$place/log
here=$(dirname "$0")
"$here/two_hosts.sh" tests/vma/statistics_test --gtest_filter='Statistics.*' || exit
VMA_TCP=on VMA_STATS_FILE=$place/connections "$here/two_hosts.sh" tests/vma/statistics_test --gtest_filter='Tcp*' || exit
export VMA_RING_ALLOCATION_LOGIC_RX=20 VMA_RING_ALLOCATION_LOGIC_TX=20 VMA_RING_MIGRATION_RATIO_RX=1 \
  VMA_RING_MIGRATION_RATIO_TX=1 VMA_RING_LIMIT_PER_INTERFACE=2
"$here/two_hosts.sh" tests/vma/statistics_test --gtest_filter='Rings.*'
