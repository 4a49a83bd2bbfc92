#!/bin/sh
# Interfaces that go and come: both hosts with libvma, by ordinary rings and by AF_XDP; and on the kernel's sockets.
folder=$(dirname "$0") library=$(pwd)/.libs/libvma.so
"$folder/two_hosts.sh" tests/vma/interface_test "$@" || exit $?
for xdp in 0 1; do
  VMA_XDP=$xdp TWO_HOSTS_PRELOAD=$library TWO_HOSTS_PEER_PRELOAD=$library "$folder/two_hosts.sh" tests/vma/interface_test "$@" || exit $?
done
