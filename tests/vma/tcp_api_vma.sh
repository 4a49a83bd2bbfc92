#!/bin/bash
# VMA's Extra API on TCP connections over rings.
export VMA_TCP=on RINGSOCK_CONFIG_DIR=/nonexistent TWO_HOSTS_PRELOAD=${1:-$PWD/.libs/libvma.so}
exec "$(dirname "$0")/two_hosts.sh" tests/vma/tcp_api_test "${@:2}"
