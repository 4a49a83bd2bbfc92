#!/bin/sh
export TWO_HOSTS_PRELOAD=$(pwd)/.libs/libvma.so TWO_HOSTS_PEER_PRELOAD=$(pwd)/.libs/libvma.so
exec "$(dirname "$0")/two_hosts.sh" tests/vma/udp_test "$@"
