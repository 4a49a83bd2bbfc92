#!/bin/bash
# What variables of VMA do to TCP connections on rings: tcp_variables_test in several rounds, each with its variables.
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
export VMA_TCP=on TWO_HOSTS_PRELOAD=$PWD/.libs/libvma.so VMA_LOG_FILE=$place/log
here=$(dirname "$0")
round() { # SUITE VARIABLE=VALUE...
  local suite=$1
  shift
  rm -f "$VMA_LOG_FILE"
  env "$@" "$here/two_hosts.sh" tests/vma/tcp_variables_test --gtest_filter="$suite.*" || exit
}
round Nothing
round MssAndNodelay VMA_MSS=700 VMA_TCP_NODELAY=1
round QuickAck VMA_TCP_QUICKACK=1
round Others VMA_TCP_CC_ALGO=0 VMA_TCP_MAX_SYN_RATE=5 VMA_TCP_3T_RULES=1 VMA_TCP_TIMESTAMP_OPTION=0
