#!/bin/sh
# Runs processes.py under the preload library of this build.
command -v python3 > /dev/null || { echo "no python3"; exit 77; }
here=$(dirname "$0")
library="${RSPRELOAD:-$PWD/.libs/librspreload.so}"
if nm -D "$library" | grep -q '__[at]san_init'; then
	echo "skipped: a sanitizer's runtime wants to be the first library of every program that is started"
	exit 77
fi
RINGSOCK_CONFIG_DIR="$(cd "$here" && pwd)/patient" LD_PRELOAD="$library" exec timeout 120 python3 "$here/processes.py"
