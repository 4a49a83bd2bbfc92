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

# check_preloaded LIBRARY: libc's calls as the map of the preload libraries has them, without a version, nothing else.
check_preloaded() {
  local library=$1 difference
  [ -e "$library" ] || { complain "$library is not there"; return; }
  difference=$(diff <(mapped_symbols "$source_dir/preload/librspreload.map" | sed 's/ *$//') <(exported_symbols "$library")) ||
    complain "$library and librspreload.map differ (< mapped, > exported):"$'\n'"$difference"
}

# check_private NAME: core and rings have no stable interface. They may export what is in namespace ringsock and the type
# information of it, nothing else.
check_private() {
  local library=$libdir/$1.so strangers version
  [ -e "$library" ] || { complain "$library is not there"; return; }
  version=$(sed -n 's/^AC_INIT(\[ringsock\], \[\([^]]*\)\].*/\1/p' "$source_dir/configure.ac")
  check_soname "$library" "$1-$version.so"
  strangers=$(nm -DC --defined-only "$library" | cut -d' ' -f3- | grep -vE '(^| for | thunk to )ringsock::|^ringsock_shell$' || true)
  [ -z "$strangers" ] || complain "$library exports what is not in namespace ringsock:"$'\n'"$strangers"
}

# Every program of a preloaded shell pays for what is loaded with the library: devices' libraries come when one is used.
check_loaded_libraries() {
  local library loaded
  for library in "$libdir"/librsocket.so "$libdir"/libvma.so "$libdir"/rsocket/librspreload.so; do
    [ -e "$library" ] || { complain "$library is not there"; continue; }
    loaded=$(ldd -r "$library" 2>&1) || complain "ldd -r $library: $loaded"
    grep -E 'undefined symbol|not found' <<<"$loaded" && complain "$library lacks symbols or libraries"
    grep -oE 'lib(ibverbs|rdmacm|nl-route|bpf|xdp|elf)[^ ]*' <<<"$loaded" && complain "$library loads these at once"
  done
}

# What the libraries contain of libstdc++ must not take the place of a program's own.
check_hidden_runtime() {
  local library exported
  for library in "$libdir"/*.so "$libdir"/rsocket/*.so; do
    exported=$(nm -D --defined-only "$library" | awk '{ print $3 }' | grep -E '^(_ZN?K?St|_ZT[ISV]+N?(St|10__cxxabiv1)|_Z(nw|na|dl|da)|__cxa_|__gxx_)')
    [ -z "$exported" ] || complain "$library exports what is libstdc++'s:"$'\n'"$exported"
  done
}

check_librsocket
check_preloaded "$libdir/rsocket/librspreload.so"
check_preloaded "$libdir/libvma.so"
check_soname "$libdir/libvma.so" libvma.so.9
check_private libringsock-core
check_private libringsock-ethernet
check_hidden_runtime
check_loaded_libraries
[ $status = 0 ] && echo "librsocket.so.1 exports its $(exported_symbols "$libdir/librsocket.so" | wc -l) mapped symbols, librspreload and libvma.so.9" \
  "their $(exported_symbols "$libdir/libvma.so" | wc -l), the core and the rings only their own"
exit $status
