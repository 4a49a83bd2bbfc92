#!/bin/sh
# The calls of libc with both preload libraries, librspreload first.
if nm -D .libs/librspreload.so | grep -q '__[at]san_init'; then
	echo "skipped: a sanitizer's build has enough of one order, that of libc_sockets_before_vma.sh"
	exit 77
fi
exec "$(dirname "$0")/libc_sockets_beside.sh" "after:$(pwd)/.libs/libvma.so" "$@"
