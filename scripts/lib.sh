# Shared by ./demo and ./check: where things are, quiet runs with progress lines, builds. Sourced by bash.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build_root=${RINGSOCK_BUILD_DIR:-$root/build}
jobs=$(nproc)
started_at=$SECONDS

say() { printf '%s\n' "$@"; }

# "[ 1:05] text", the time since the start of the script.
progress() {
  local seconds=$((SECONDS - started_at))
  printf '[%2d:%02d] %s\n' $((seconds / 60)) $((seconds % 60)) "$*"
}

# run_watched NAME LOGFILE COMMAND...: runs it quietly; a line a minute tells that it is alive.
run_watched() {
  local name=$1 log=$2 status=0
  shift 2
  mkdir -p "$(dirname "$log")"
  (
    trap 'kill "$!" 2>/dev/null; exit 0' TERM
    while :; do
      sleep 60 >/dev/null 2>&1 &
      wait "$!"
      progress "  still at it: $name ($(tail -n 1 "$log" 2>/dev/null | cut -c1-90))"
    done
  ) &
  local heart=$!
  "$@" >"$log" 2>&1 </dev/null || status=$?
  kill "$heart" 2>/dev/null || true
  wait "$heart" 2>/dev/null || true
  return $status
}

# remember_failure: prints its input, and keeps it for the end of ./check, where a reader of a long output finds it.
remember_failure() { tee -a "${failures:-/dev/null}"; }

# run_logged NAME LOGFILE COMMAND...: the same; on failure the end of its output.
run_logged() {
  local name=$1 log=$2 status=0
  run_watched "$@" || status=$?
  if [ $status != 0 ]; then
    {
      progress "FAILED: $name (status $status); the end of $log:"
      # What failed may stand far above the end, where make tells only that something did.
      { grep -E '^(FAIL|ERROR|XPASS|not ok)[: ]|: (fatal )?error: |^\[  FAILED  \]' "$log" | head -n 20; echo ...
        grep -vE '^(PASS: |(ok|known|late) [a-z]+/)' "$log" | tail -n 40; } | sed 's/^/    /'
    } | remember_failure
  fi
  return $status
}

# The same file with the same flags is compiled once, be it in the source tree or in the one that `make distcheck` unpacks.
export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1
# Precompiled headers, of which it wants to be told that nobody minds times and unused macros in them.
export CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_PCH_EXTSUM=1
# No run of the preprocessor by itself: the dependencies that make wants tell what a file was made of.
export CCACHE_DEPEND=1

# The compiler command, through ccache where that is installed.
cached() { if command -v ccache >/dev/null; then echo "ccache $1"; else echo "$1"; fi; }

# configure_in DIR CC CXX CXXFLAGS [OPTION...]: makes ./configure and DIR/Makefile unless they are there and newer. A directory
# that was configured otherwise starts anew: make would keep the objects of the earlier flags.
configure_in() {
  local dir=$1 cc=$2 cxx=$3 flags=$4 wanted="$* TESTS_CXXFLAGS=${TESTS_CXXFLAGS:-}"
  shift 4
  if [ ! -x "$root/configure" ] || [ "$root/configure.ac" -nt "$root/configure" ]; then
    run_logged autogen "$build_root/autogen.log" "$root/autogen.sh" || return 1
  fi
  [ ! -f "$dir/Makefile" ] || [ "$(cat "$dir/configured-for" 2>/dev/null)" = "$wanted" ] || rm -rf "$dir"
  mkdir -p "$dir"
  if [ ! -f "$dir/Makefile" ] || [ "$root/configure" -nt "$dir/config.status" ]; then
    run_logged "configure $(basename "$dir")" "$dir/configure.log" \
      env -C "$dir" CC="$(cached "$cc")" CXX="$(cached "$cxx")" CFLAGS="$flags" CXXFLAGS="$flags" \
      "$root/configure" --prefix="$dir/stage" --sysconfdir="$dir/stage/etc" "$@" || return 1
    echo "$wanted" >"$dir/configured-for"
  fi
}

# build_and_install DIR: everything but the tests, installed into DIR/stage.
build_and_install() {
  # An earlier installation goes first: the linker could find its libraries before those being built.
  rm -rf "$1/stage"
  run_logged "build $(basename "$1")" "$1/build.log" make -C "$1" -j"$jobs" all &&
    run_logged "install $(basename "$1")" "$1/install.log" make -C "$1" install
}

# A TCP port that nobody holds at the moment, below those that the kernel hands out by itself.
free_port() {
  python3 - <<'PY'
import random, socket
while True:
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", random.randrange(10000, 32000)))
            print(probe.getsockname()[1])
            break
    except OSError:
        pass
PY
}
