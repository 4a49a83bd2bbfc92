#!/bin/sh
# The calls of libc with both preload libraries, librspreload first.
exec "$(dirname "$0")/libc_sockets_beside.sh" "after:$(pwd)/.libs/libvma.so" "$@"
