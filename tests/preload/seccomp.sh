#!/bin/sh
# Runs seccomp.py under the preload library of this build.
command -v python3 > /dev/null || { echo "no python3"; exit 77; }
command -v cc > /dev/null || { echo "no C compiler"; exit 77; }
here=$(dirname "$0")
library="${RSPRELOAD:-$PWD/.libs/librspreload.so}"
if nm -D "$library" | grep -q '__[at]san_init'; then
	echo "skipped: a sanitizer's runtime makes system calls of its own"
	exit 77
fi
exec timeout 900 python3 "$here/seccomp.py" "$PWD/tests/preload/seccomp_talk" "$PWD/tests/preload/seccomp_rows" "$library"
