#!/bin/bash
# Copies of a ring's packets in a file: pcap_test with VMA_PCAP_FILE.
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
export VMA_TCP=on VMA_PCAP_FILE=$place/ring TWO_HOSTS_PRELOAD=${1:-$PWD/.libs/libvma.so}
"$(dirname "$0")/two_hosts.sh" tests/vma/pcap_test "${@:2}"
