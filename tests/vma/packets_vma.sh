#!/bin/bash
# Packets in buffers of the rings, by VMA's Extra API over libvma, with a small pool of buffers; then SocketXtreme.
built=$(pwd)/.libs here=$(dirname "$0")
export RINGSOCK_CONFIG_DIR=/nonexistent VMA_RX_BUFS=1000 TWO_HOSTS_PRELOAD=$built/libvma.so
"$here/two_hosts.sh" tests/vma/packets_test --gtest_filter="-SocketXtreme*" "$@" || exit
VMA_SOCKETXTREME=1 "$here/two_hosts.sh" tests/vma/packets_test --gtest_filter="SocketXtreme*" "$@"
