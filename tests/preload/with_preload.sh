#!/bin/sh
# Runs a test program with librspreload.so of this build: with_preload.sh PROGRAM [ARGUMENT...]
# RINGSOCK_TEST_OTHER_LIBRARY: another one, before:FILE or after:FILE.
# AddressSanitizer's runtime must come before every other library; ThreadSanitizer's must come after ours, whose next it then is.
library=$(pwd)/.libs/librspreload.so
[ -e "$library" ] || { echo "1..0 # SKIP $library is not built"; exit 77; }
case ${RINGSOCK_TEST_OTHER_LIBRARY:-} in
before:*) library=${RINGSOCK_TEST_OTHER_LIBRARY#*:}:$library ;;
after:*) library=$library:${RINGSOCK_TEST_OTHER_LIBRARY#*:} ;;
esac
program=$1
shift
case $program in /*) ;; *) program=./$program ;; esac
real=$(dirname "$program")/.libs/$(basename "$program")
[ -x "$real" ] || real=$program
runtime=$(ldd "$real" | awk '/lib(clang_rt\.)?asan/ { print $3; exit }')
export RINGSOCK_CONFIG_DIR="${RINGSOCK_TEST_CONFIG_DIR:-/nonexistent}" LD_LIBRARY_PATH="$(pwd)/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export RINGSOCK_TEST_PRELOADED=1
LD_PRELOAD="${runtime:+$runtime:}$library" exec "$real" "$@"
