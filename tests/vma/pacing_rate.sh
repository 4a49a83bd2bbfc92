#!/bin/bash
# How exactly SO_MAX_PACING_RATE is kept over a second, as the interface counts, medians of five; at most 2 % off.
# Usage: pacing_rate.sh, in the build directory. Exit status: 0 reached; 1 not; 77 no namespaces.
set -uo pipefail
folder=$(dirname "$0") missed=0
export VMA_TRACELEVEL=error TWO_HOSTS_PRELOAD=$PWD/.libs/libvma.so
once() { "$folder/two_hosts.sh" tests/vma/pacing_rate "$@" 1; }
printf '%-10s %-8s %-6s %-6s %12s %8s %6s %7s\n' kbit/s burst frame waits "bytes/s" off CPU at-once
row() { # KBIT/S BURST FRAME block|poll
  local line figures=
  for _ in 1 2 3 4 5; do
    line=$(once "$@") || exit $?
    figures+="$line"$'\n'
  done
  line=$(sort -n <<<"${figures%$'\n'}" | sed -n 3p)
  awk -v words="$* $line" 'BEGIN {
    split(words, w, " ")
    printf "%-10s %-8s %-6s %-6s %12s %7s%% %5s%% %7s\n", w[1], w[2] ? w[2] : "default", w[3], w[4], w[5], w[6], w[7], w[8]
    exit w[6] > 2 || w[6] < -2 }' || missed=1
}
for waits in block poll; do
  row 800 0 1000 $waits
  row 8000 0 1000 $waits
  row 8000 1514 1514 $waits
  row 100000 0 1514 $waits
  row 100000 3000 1000 $waits
  row 1000000 0 1514 $waits
done
exit $missed
