#!/bin/bash
# Random calls on TCP connections over rings and on the kernel's: tcp_random_test with VMA_TCP=on.
export VMA_TCP=on TWO_HOSTS_PRELOAD=${1:-$PWD/.libs/libvma.so}
exec "$(dirname "$0")/two_hosts.sh" tests/vma/tcp_random_test "${@:2}"
