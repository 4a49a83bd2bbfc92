#!/bin/bash
# SocketXtreme for TCP connections over rings; then with a ring for each thread; then programs that do not poll rings.
export VMA_TCP=on VMA_SOCKETXTREME=1 RINGSOCK_CONFIG_DIR=/nonexistent TWO_HOSTS_PRELOAD=${1:-$PWD/.libs/libvma.so}
"$(dirname "$0")/two_hosts.sh" tests/vma/tcp_polled_test --gtest_filter="-TcpPolledRings*" "${@:2}" || exit
VMA_RING_ALLOCATION_LOGIC_RX=20 VMA_RING_ALLOCATION_LOGIC_TX=20 \
  "$(dirname "$0")/two_hosts.sh" tests/vma/tcp_polled_test --gtest_filter="TcpPolledRings*" "${@:2}" || exit
# There are no trials.
exec "$(dirname "$0")/two_hosts.sh" tests/vma/tcp_test --gtest_filter="-*TcpShortLives*" "${@:2}"
