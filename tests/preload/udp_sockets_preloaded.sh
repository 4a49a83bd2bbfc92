#!/bin/sh
# UDP sockets with rings beside the kernel's.
here=$(dirname "$0")
RINGSOCK_TEST_CONFIG_DIR=$(cd "$here" && pwd)/by_ring
export RINGSOCK_TEST_CONFIG_DIR
exec "$here/with_preload.sh" tests/preload/udp_sockets_test "$@"
