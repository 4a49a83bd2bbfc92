#!/bin/bash
# Datagrams of 64 bytes per second by sendto() and recvfrom() one by one, on the kernel's sockets and with libvma's packet
# and xdp rings, medians of five: sent, to a peer on the kernel; received, from a peer with libvma (which sends bursts as one packet) and
# from one that sends each alone.
# Usage: udp_rate.sh, in the build directory. Exit status: 0; 1 it failed; 77 no namespaces.
set -uo pipefail
folder=$(dirname "$0")
library=$PWD/.libs/libvma.so
export VMA_TRACELEVEL=error
once() { # LIBRARY OF THE SENDER, BURSTS, LIBRARY OF THE RECEIVER, XDP
  TWO_HOSTS_PRELOAD=$1 VMA_TX_BURSTS=$2 VMA_XDP=$4 "$folder/two_hosts.sh" tests/vma/udp_rate 0.5 "$3"
}
median() { # COLUMN, ARGUMENTS OF once
  local column=$1 line figures=
  shift
  for _ in 1 2 3 4 5; do
    line=$(once "$@") || exit $?
    figures+="$(cut -d' ' -f"$column" <<<"$line")"$'\n'
  done
  sort -n <<<"${figures%$'\n'}" | sed -n 3p
}
row() { # TITLE, THEN FIGURES OF kernel, packet, xdp
  awk -v title="$1" -v kernel="$2" -v packet="$3" -v xdp="$4" 'BEGIN {
    printf "%-44s %9d %9d %9d %6.2fx %6.2fx\n", title, kernel, packet, xdp, packet / kernel, xdp / kernel }'
}
row_of() { # TITLE, COLUMN, THEN ARGUMENTS OF once FOR kernel, packet, xdp, EACH IN ONE WORD, WITH : IN BETWEEN
  local title=$1 column=$2 figures=() arguments
  shift 2
  for words in "$@"; do
    IFS=: read -ra arguments <<<"$words:"
    figures+=("$(median "$column" "${arguments[@]}")") || exit $?
  done
  row "$title" "${figures[@]}"
}
printf '%-44s %9s %9s %9s %7s %7s\n' "64 B over veth, medians of five" kernel packet xdp packet xdp
row_of "datagrams/s sent, one call each" 1 ":1::0" "$library:1::0" "$library:1::1" || exit $?
row_of "datagrams/s received, of bursts of libvma" 2 "$library:1::0" "$library:1:$library:0" "$library:1:$library:1" || exit $?
row_of "datagrams/s received, each sent alone" 2 "$library:0::0" "$library:0:$library:0" "$library:0:$library:1" || exit $?
