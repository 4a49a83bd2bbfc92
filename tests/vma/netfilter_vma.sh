#!/bin/bash
# Rules of netfilter hold for sockets on rings: on the kernel's sockets, with libvma by both kinds of ring, and told to
# pass them by. The older iptables' tables, once there, stay: those have hosts of their own.
command -v nft >/dev/null || { echo "1..0 # SKIP there is no nft"; exit 77; }
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
here=$(dirname "$0") library=$PWD/.libs/libvma.so
"$here/two_hosts.sh" tests/vma/netfilter_test --gtest_filter='Netfilter.*' || exit
export TWO_HOSTS_PRELOAD=$library VMA_STATS_SHMEM_DIR=$place VMA_LOG_FILE=$place/log
for xdp in 0 1; do
  VMA_XDP=$xdp "$here/two_hosts.sh" tests/vma/netfilter_test --gtest_filter='Netfilter.*' || exit
done
"$here/two_hosts.sh" tests/vma/netfilter_test --gtest_filter='OlderIptables.*' || exit
VMA_IGNORE_NETFILTER=1 "$here/two_hosts.sh" tests/vma/netfilter_test --gtest_filter='IgnoredNetfilter.*'
