#!/bin/bash
# How fast the ways of VMA's Extra API to receive are, over libvma between two hosts of this machine: round trips of 64
# bytes by UDP and TCP, and datagrams of 1,400 bytes that are there already. Usage, in the build directory: extra_ways.sh [RUNS] (3;
# medians). Prints a line for each measure: its name, and the figures of recvfrom, callback, zero copy and SocketXtreme.
set -uo pipefail
runs=${1:-3} here=$(dirname "$0")
[ "$(id -u)" = 0 ] || { echo "skipped: network namespaces need root"; exit 77; }
export VMA_TRACELEVEL=error TWO_HOSTS_PRELOAD=${EXTRA_WAYS_LIBRARY:-$PWD/.libs/libvma.so}
ways=(recvfrom callback zerocopy socketxtreme)

# measure NAME FIELD PROGRAM [WORD...]: in turns, so that all ways meet the same machine.
measure() {
  local name=$1 field=$2 program=$3 run way
  shift 3
  declare -A values=()
  for run in $(seq "$runs"); do
    for way in "${ways[@]}"; do
      if [ "$way" = socketxtreme ]; then export VMA_SOCKETXTREME=1; else unset VMA_SOCKETXTREME; fi
      values[$way]+="$("$here/two_hosts.sh" "tests/vma/$program" "$way" "$@" | awk -v f="$field" 'END { print $f }') "
    done
  done
  printf '%s' "$name"
  for way in "${ways[@]}"; do
    printf ' %s' "$(tr ' ' '\n' <<<"${values[$way]}" | sed '/^$/d' | sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }')"
  done
  echo
}
measure round_trip_kernel_peer_ns 1 extra_ways kernel
measure round_trip_both_ns 1 extra_ways same
VMA_TCP=on measure tcp_round_trip_kernel_peer_ns 1 extra_ways kernel tcp
VMA_TCP=on measure tcp_round_trip_both_ns 1 extra_ways same tcp
measure datagram_1400_ns 2 packets_cost
