#!/bin/bash
# How many instructions a recvfrom() and a sendto() of 64 bytes take in user space with libvma, counted by callgrind while
# the datagram is there already; at most 1200.
# Usage: udp_cost.sh [OUTPUT FOR callgrind_annotate], in the build directory. Exit status: 0 reached, 1 not, 77 no valgrind or namespaces.
set -uo pipefail
command -v valgrind >/dev/null && command -v callgrind_annotate >/dev/null || { echo "skipped: no valgrind"; exit 77; }
limit=1200
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
profile=${1:-$dir/profile}
calls=$(env LD_BIND_NOW=1 VMA_TRACELEVEL=error TWO_HOSTS_PRELOAD="$PWD/.libs/libvma.so" "$(dirname "$0")/two_hosts.sh" \
  tests/vma/udp_cost valgrind --quiet --tool=callgrind --toggle-collect=cost_of_pair --callgrind-out-file="$profile" 2>"$dir/log")
status=$?
[ $status = 0 ] || { cat "$dir/log"; echo "$calls"; exit $status; }
callgrind_annotate "$profile" | awk -v calls="$calls" -v limit=$limit '
  /PROGRAM TOTALS/ { gsub(",", ""); each = $1 / calls }
  END {
    missed = each == 0 || each > limit
    printf "instructions per recvfrom() and sendto(): %.0f; at most %d: %s\n", each, limit, missed ? "not reached" : "reached"
    exit missed
  }'
