#!/usr/bin/env bash
# Compares what the installed libraries export with their symbol maps, and looks at their names (soname, NEEDED, links).
# Usage: check_exports.sh SOURCE_DIR LIBDIR      The last line of output is the summary.
set -uo pipefail
source_dir=$1 libdir=$2 status=0

complain() {
  echo "check_exports: $*"
  status=1
}

# "name node" for each symbol of a version script that lists plain names.
mapped_symbols() {
  sed -e 's,/\*.*\*/,,' -e 's/#.*//' -e '/^RINGSOCK_PRIVATE/,/^}/d' "$1" | tr ';{}' '\n\n\n' | awk '
    NF == 0 { next }
    $1 ~ /^RDMACM_[0-9.]+$/ || $1 ~ /^RINGSOCK_[0-9.]+$/ { if (!seen[$1]++) node = $1; next }
    /global:/ { sub(/.*global:/, ""); if (NF == 0) next }
    /local:/ || $1 == "*" { next }
    { print $1, node }' | sort
}

# "name node" for each symbol that a library defines for others; the nodes themselves are absolute symbols, left out. What
# our libraries export for each other is not among them.
exported_symbols() {
  nm -D --defined-only "$1" | awk '$2 != "A" { sub(/@@?/, " ", $3); print $3 }' | grep -v ' RINGSOCK_PRIVATE$' | sort
}

check_soname() {
  local library=$1 wanted=$2 found
  found=$(readelf -d "$library" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')
  [ "$found" = "$wanted" ] || complain "$library: soname $found instead of $wanted"
  [ -e "$(dirname "$library")/$wanted" ] || complain "$library: no link $wanted beside it"
}

check_librsocket() {
  local library=$libdir/librsocket.so difference
  [ -e "$library" ] || { complain "$library is not there"; return; }
  check_soname "$library" librsocket.so.1
  difference=$(diff <(mapped_symbols "$source_dir/librsocket/librsocket.map") <(exported_symbols "$library")) ||
    complain "librsocket.so and librsocket.map differ (< mapped, > exported):"$'\n'"$difference"
  difference=$(nm -DC --defined-only "$library" | grep '@RINGSOCK_PRIVATE$' | cut -d' ' -f3- | grep -vE '(^| for )ringsock::rs::')
  [ -z "$difference" ] || complain "librsocket.so exports what is not in namespace ringsock::rs:"$'\n'"$difference"
  # The ABI that programs linked with librdmacm's rsockets count on, apart from the map that could lose a line.
  difference=$(comm -23 <(sort "$source_dir/tests/abi/rdmacm_rsockets.txt") <(exported_symbols "$library"))
  [ -z "$difference" ] || complain "librsocket.so lacks: $difference"
}

# The core has no stable interface: it may export what is in namespace ringsock and the type information of it, nothing else.
check_core() {
  local library=$libdir/libringsock-core.so strangers version
  [ -e "$library" ] || { complain "$library is not there"; return; }
  version=$(sed -n 's/^AC_INIT(\[ringsock\], \[\([^]]*\)\].*/\1/p' "$source_dir/configure.ac")
  check_soname "$library" "libringsock-core-$version.so"
  strangers=$(nm -DC --defined-only "$library" | cut -d' ' -f3- | grep -vE '(^| for )ringsock::' || true)
  [ -z "$strangers" ] || complain "libringsock-core.so exports what is not in namespace ringsock:"$'\n'"$strangers"
}

check_librsocket
check_core
[ $status = 0 ] && echo "librsocket.so.1 exports its $(exported_symbols "$libdir/librsocket.so" | wc -l) mapped symbols, the core only its own"
exit $status
