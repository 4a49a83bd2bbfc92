#!/bin/bash
# How many instructions a TCP engine takes for a request and an answer of 64 bytes, without and with timestamps, counted by
# callgrind; at most 2200 and 2350.
# Usage: tcp_engine_cost.sh, in the build directory. Exit status: 0 reached, 1 not, 77 no valgrind.
set -uo pipefail
command -v valgrind >/dev/null && command -v callgrind_annotate >/dev/null || { echo "skipped: no valgrind"; exit 77; }
program=${1:-$PWD/tests/bench/tcp_engine_cost}
[ -x "$program" ] || { echo "make tests/bench/tcp_engine_cost first"; exit 1; }
# What libtool made is a shell script beside the program.
real=$(dirname "$program")/.libs/$(basename "$program")
[ ! -x "$real" ] || program=$real
export LD_LIBRARY_PATH="$PWD/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# count LIMIT [ARGUMENT]
count() {
  local limit=$1 calls
  shift
  calls=$(env LD_BIND_NOW=1 valgrind --quiet --tool=callgrind --toggle-collect=cost_of_exchange \
    --callgrind-out-file="$dir/out" "$program" "$@" 2>"$dir/log") || { cat "$dir/log"; return 1; }
  callgrind_annotate "$dir/out" | awk -v calls="$calls" -v limit="$limit" -v name="${*:-plain}" '
    /PROGRAM TOTALS/ { gsub(",", ""); each = $1 / calls / 2 }  # two engines
    END {
      missed = each == 0 || each > limit
      printf "instructions per engine, %s: %.0f; at most %d: %s\n", name, each, limit, missed ? "not reached" : "reached"
      exit missed
    }'
}

status=0
count 2200 || status=1
count 2350 timestamps || status=1
exit $status
