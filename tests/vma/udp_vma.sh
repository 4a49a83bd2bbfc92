#!/bin/sh
# The other host's service stays with the kernel.
TWO_HOSTS_PRELOAD=$(pwd)/.libs/libvma.so exec "$(dirname "$0")/two_hosts.sh" tests/vma/udp_test "$@"
