#!/bin/sh
# The calls of libc with both preload libraries, libvma first.
exec "$(dirname "$0")/libc_sockets_beside.sh" "before:$(pwd)/.libs/libvma.so" "$@"
