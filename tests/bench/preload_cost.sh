#!/bin/bash
# How many instructions librspreload adds to a call on a descriptor that is not ours, counted by callgrind; at most 20.
# Usage: preload_cost.sh, in the build directory. Exit status: 0 reached, 1 not, 77 no valgrind.
set -euo pipefail
command -v valgrind >/dev/null && command -v callgrind_annotate >/dev/null || { echo "skipped: no valgrind"; exit 77; }
limit=20
library=$PWD/.libs/librspreload.so program=$PWD/tests/bench/preload_cost
[ -e "$library" ] && [ -x "$program" ] || { echo "make librspreload.la tests/bench/preload_cost first"; exit 1; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# count NAME [VARIABLE=VALUE...]: "call instructions" for each call, into $dir/NAME
count() {
  local name=$1
  shift
  calls=$(env LD_BIND_NOW=1 RINGSOCK_CONFIG_DIR=/nonexistent "$@" valgrind --quiet --tool=callgrind \
    --callgrind-out-file="$dir/$name.out" "$program" 2>"$dir/$name.log") || { cat "$dir/$name.log"; exit 1; }
  # Lines of callgrind_annotate: "  12,345 (10.0%)  file:function [object]".
  callgrind_annotate --inclusive=yes --threshold=100 "$dir/$name.out" |
    sed -n 's/^ *\([0-9,]*\) .*:cost_of_\([a-z_]*\).*/\2 \1/p' | tr -d , | sort -u >"$dir/$name"
  [ "$(wc -l <"$dir/$name")" = 5 ] || { echo "callgrind did not count all calls"; cat "$dir/$name"; exit 1; }
}

count libc
count preloaded LD_LIBRARY_PATH="$PWD/.libs" LD_PRELOAD="$library"
join "$dir/libc" "$dir/preloaded" | awk -v calls="$calls" -v limit=$limit '
  BEGIN { printf "%-12s %10s %10s %10s\n", "call", "libc", "preloaded", "more" }
  {
    more = ($3 - $2) / calls
    printf "%-12s %10.1f %10.1f %10.1f\n", $1, $2 / calls, $3 / calls, more
    if (more > limit) bad = 1
  }
  END { printf "instructions per call; at most %d more: %s\n", limit, bad ? "not reached" : "reached"; exit bad }'
