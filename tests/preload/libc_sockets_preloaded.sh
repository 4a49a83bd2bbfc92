#!/bin/sh
# Once more what depends on whether a thread that waits sleeps or spins.
here=$(dirname "$0")
"$here/with_preload.sh" tests/preload/libc_sockets_test "$@" || exit
[ $# -gt 0 ] || RINGSOCK_POLLING_TIME=3600000000 exec "$here/with_preload.sh" tests/preload/libc_sockets_test --gtest_filter='*Signal*:*Cancel*:*PartialTransfer*'
