#!/bin/bash
# TCP connections over rings on a bad network: tcp_network_test with VMA_TCP=on.
# Rules of netfilter lose packets in the other host; rings are to carry connections there all the same.
export VMA_TCP=on VMA_IGNORE_NETFILTER=1 TWO_HOSTS_PRELOAD=${1:-$PWD/.libs/libvma.so}
exec "$(dirname "$0")/two_hosts.sh" tests/vma/tcp_network_test "${@:2}"
