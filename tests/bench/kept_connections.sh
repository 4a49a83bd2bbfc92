#!/bin/bash
# What a connection of an unmodified program costs both ends that is made and kept: CPU time and page faults, over the kernel's TCP
# and with librspreload, in turns: medians of 5.
# Usage: kept_connections.sh [LIBRARY [CONNECTIONS]], in the build directory.
set -euo pipefail
library=${1:-$PWD/stage/lib/rsocket/librspreload.so} connections=${2:-2000} program=$PWD/tests/bench/kept_connections runs=5
[ -e "$library" ] && [ -x "$program" ] || { echo "make install and tests/bench/kept_connections first"; exit 1; }

# once WAY: a line of "made" and "closed" CPU time in us, and of page faults when made
once() {
  local preload=
  [ "$1" = kernel ] || preload=$library
  LD_PRELOAD=$preload "$program" "$connections" | awk '/^made/ { made = $4; faults = $7 + $8 } /^closed/ { closed = $4 } END { print made, closed, faults }'
}

median() { printf '%s\n' "$@" | sort -n | sed -n "$((runs / 2 + 1))p"; }

kernel=() ring=()
for ((i = 0; i < runs; ++i)); do
  kernel+=("$(once kernel)")
  ring+=("$(once ring)")
done
printf '%-40s %9s %9s\n' "each of $connections connections, both ends" kernel ring
for row in "1:made, us CPU" "2:closed, us CPU" "3:made, page faults"; do
  column() { printf '%s\n' "$@" | cut -d' ' -f"${row%%:*}"; }
  printf '%-40s %9s %9s\n' "${row#*:}" "$(median $(column "${kernel[@]}"))" "$(median $(column "${ring[@]}"))"
done
