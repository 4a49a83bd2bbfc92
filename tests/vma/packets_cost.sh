#!/bin/bash
# What receiving a datagram of 1,400 bytes costs by each way of VMA's Extra API: instructions in user space, counted by
# callgrind, and nanoseconds. Usage: packets_cost.sh, in the build directory.
set -uo pipefail
command -v valgrind >/dev/null && command -v callgrind_annotate >/dev/null || { echo "skipped: no valgrind"; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export LD_BIND_NOW=1 VMA_TRACELEVEL=error TWO_HOSTS_PRELOAD="$PWD/.libs/libvma.so"
for way in recvfrom callback zerocopy socketxtreme; do
  [ $way = socketxtreme ] && export VMA_SOCKETXTREME=1
  calls=$("$(dirname "$0")/two_hosts.sh" tests/vma/packets_cost $way valgrind --quiet --tool=callgrind \
    --toggle-collect=cost_of_batch --callgrind-out-file="$dir/$way" 2>"$dir/log") || { cat "$dir/log"; exit 1; }
  each=$(for _ in 1 2 3 4 5; do "$(dirname "$0")/two_hosts.sh" tests/vma/packets_cost $way; done | awk '{ print $2 }' | sort -n | sed -n 3p)
  [ -n "${KEEP:-}" ] && cp "$dir/$way" "$KEEP.$way"
  callgrind_annotate "$dir/$way" | awk -v calls="${calls% *}" -v way=$way -v each="$each" '
    /PROGRAM TOTALS/ { gsub(",", ""); printf "%-13s %5.0f instructions, %5s ns per datagram\n", way, $1 / calls, each }'
done
