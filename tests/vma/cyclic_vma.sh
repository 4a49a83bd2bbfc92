#!/bin/bash
# Cyclic buffers over libvma, by the tables of VMA 9.3.0 and later, and of 8.8.2 to 9.2.
built=$(pwd)/.libs here=$(dirname "$0")
export RINGSOCK_CONFIG_DIR=/nonexistent TWO_HOSTS_PRELOAD=$built/libvma.so
"$here/two_hosts.sh" tests/vma/cyclic_test "$@" || exit
VMA_EXTRA_API_LAYOUT=8.9 "$here/two_hosts.sh" tests/vma/cyclic_test "$@"
