#!/bin/sh
# Packets that nobody should send, a million of them to libvma's rings, fewer to those over AF_XDP and to the kernel's sockets.
folder=$(dirname "$0") library=$(pwd)/.libs/libvma.so
HOSTILE_PACKETS=50000 "$folder/two_hosts.sh" tests/vma/hostile_test "$@" || exit $?
HOSTILE_PACKETS=1000000 TWO_HOSTS_PRELOAD=$library "$folder/two_hosts.sh" tests/vma/hostile_test "$@" || exit $?
HOSTILE_PACKETS=100000 VMA_XDP=1 TWO_HOSTS_PRELOAD=$library "$folder/two_hosts.sh" tests/vma/hostile_test "$@"
