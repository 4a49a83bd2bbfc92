#!/bin/sh
exec "$(dirname "$0")/with_preload.sh" tests/preload/libc_sockets_test "$@"
