#!/bin/sh
# Both ends by rings over AF_XDP sockets.
export VMA_XDP=1 TWO_HOSTS_PRELOAD=$(pwd)/.libs/libvma.so TWO_HOSTS_PEER_PRELOAD=$(pwd)/.libs/libvma.so
exec "$(dirname "$0")/two_hosts.sh" tests/vma/udp_test "$@"
