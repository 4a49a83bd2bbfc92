#!/bin/bash
# TCP connections over rings: tcp_test with VMA_TCP=on.
export VMA_TCP=on TWO_HOSTS_PRELOAD=${1:-$PWD/.libs/libvma.so}
exec "$(dirname "$0")/two_hosts.sh" tests/vma/tcp_test "${@:2}"
