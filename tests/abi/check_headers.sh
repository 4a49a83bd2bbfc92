#!/usr/bin/env bash
# Every header compiles alone, with warnings as errors; the installed ones as C too. Those that their source file begins
# with are left to the build.
# Usage: check_headers.sh SOURCE_DIR     Environment: CXX, CC. The last line of output is the summary.
set -uo pipefail
cd "$1" || exit 1
CXX=${CXX:-g++} CC=${CC:-gcc}
flags="-Wall -Wextra -Wconversion -Werror -D_GNU_SOURCE -DSYSCONFDIR=\"/etc\" -I. -Iinclude $(pkg-config --cflags libnl-3.0) -fsyntax-only"

# Arguments: language standard, compiler, header as it is included.
compile_alone() {
  local language=$1 compiler=$2 header=$3
  # shellcheck disable=SC2086
  if ! printf '#include "%s"\n' "$header" | $compiler -x "${language%%:*}" -std="${language##*:}" $flags - ; then
    echo "not self-contained ($language): $header"
    return 1
  fi
}
export -f compile_alone
export flags

# Is it the first thing that its own .cc includes? Then every build does this.
begins_a_source() {
  local source=${1%.h}.cc
  [ -f "$source" ] && [ "$(grep -m 1 '^#include' "$source")" = "#include \"$1\"" ]
}
all=$(find core librsocket libvmacompat preload tools tests -name '*.h' | sort)
internal=$(for header in $all; do begins_a_source "$header" || echo "$header"; done)
installed=$(cd include && find . -name '*.h' | sed 's,^\./,,' | sort)
{
  for header in $internal $installed; do printf 'c++:c++20\0%s\0%s\0' "$CXX" "$header"; done
  for header in $installed; do printf 'c:c99\0%s\0%s\0' "$CC" "$header"; done
} | xargs -0 -n 3 -P "$(nproc)" bash -c 'compile_alone "$@"' alone || exit 1
echo "$(wc -w <<<"$internal $installed") headers compile alone, $(wc -w <<<"$installed") of them as C too;" \
  "$(($(wc -w <<<"$all") - $(wc -w <<<"$internal"))) others begin a source file"
