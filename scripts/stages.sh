# The stages of ./check. Each is a function stage_NAME that adds to passed, failed and skipped, and returns 0 (passed),
# 77 (skipped, with skip_reason set) or anything else (failed). Sourced by check, after lib.sh.

all_stages=(gcc headers exports cost tools programs suites attacks vma vm asan tsan fuzz dist format tidy)
# Those that run with --long, or when they are named.
long_stages=(suites)
# The last minute in which a stage of a whole ./check begins. CI ends a run after 90 minutes, whatever it has found; machines were
# seen that need three times as long as others, and the same one at other times.
declare -A latest_start=([asan]=50 [tsan]=58 [dist]=74 [fuzz]=77 [tidy]=80)
declare -A stage_help=(
  [gcc]="g++, warnings are errors; all tests; install"
  [headers]="every header compiles alone, the installed ones as C too; folders include what ARCHITECTURE.md draws; no new class is large"
  [exports]="the libraries export what their symbol maps say, carry the right names, and have no new mutable globals"
  [cost]="callgrind counts the instructions of a call over libvma, and of one that passes through librspreload"
  [tools]="Debian's rstream, riostream, rcopy, udpong over librsocket, with each other and with ours"
  [programs]="Debian's redis, nginx, PostgreSQL, ssh ... over librspreload: both ends, one end, none, killed in the middle"
  [suites]="with --long only: the test suites of libuv, node, perl, redis, Python over librspreload, beside the kernel's results"
  [attacks]="three users on one host: descriptors, memory, floods, squatters, lies, names, sandboxes against servers and clients"
  [vma]="Debian's UDP and TCP programs over libvma between two hosts: both ends, one end, killed in the middle"
  [vm]="a guest with Soft-RoCE and Soft-iWARP: checked transfers between upstream's rsockets and ours"
  [asan]="clang++, warnings are errors; AddressSanitizer and UBSan; all tests"
  [tsan]="ThreadSanitizer; the threaded tests"
  [fuzz]="the libFuzzer targets, for a moment each"
  [dist]="make distcheck: the tarball builds, passes its tests, installs and uninstalls"
  [format]="clang-format has nothing to change"
  [tidy]="clang-tidy on the files whose text has not passed before, those changed last first, for four minutes"
)

# is_too_late STAGE: whether this run of all stages has no time left for it; skip_reason is set then.
is_too_late() {
  local minutes=$(((SECONDS - started_at) / 60)) latest=${latest_start[$1]:-}
  [ "$is_limited" = yes ] && [ -n "$latest" ] && [ $minutes -ge "$latest" ] || return 1
  skip_reason="this machine is slow: $minutes minutes are over, and it begins before $latest or not at all; ./check $1 runs it"
}

# failed_tests DIR SINCE: the tests that ended with a failure after the file DIR/SINCE was made, with their paths below DIR.
failed_tests() {
  find "$1/tests" -name '*.trs' -newer "$1/$2" -exec grep -lE '^:test-result: (FAIL|ERROR|XPASS)' {} + | sed -e "s,^$1/,," -e 's/\.trs$//' | sort
}

most_run_alone=12  # more failures than these have a common cause

# run_failed_alone DIR [MAKE_ARGUMENT...]: each failed test of DIR once more, one at a time. A test that passes alone is FLAKY, and has
# failed, too: this only tells where to look. The logs of the first run are kept in DIR/failed-logs.
run_failed_alone() {
  local dir=$1 name tests test
  name=$(basename "$dir")
  shift
  mapfile -t tests < <(failed_tests "$dir" tests-started)
  rm -rf "$dir/failed-logs"
  for test in "${tests[@]}"; do
    mkdir -p "$(dirname "$dir/failed-logs/$test")"
    cp "$dir/$test.log" "$dir/failed-logs/$test.log"
  done
  if [ ${#tests[@]} -gt $most_run_alone ]; then
    progress "${#tests[@]} tests of $name failed: too many to run each alone"
    return
  fi
  touch "$dir/alone-started"
  run_watched "the failed tests of $name, one by one" "$dir/tests-alone.log" make -C "$dir" -k recheck "$@"
  for test in "${tests[@]}"; do
    if [ "$dir/$test.trs" -nt "$dir/alone-started" ] && grep -q '^:test-result: PASS' "$dir/$test.trs"; then
      say "    FLAKY (passes alone): $test, see $dir/failed-logs/$test.log"
    else
      say "    FAILED (alone, too): $test, see $dir/failed-logs/$test.log"
    fi
  done
}

# run_tests BUILD_DIR [MAKE_ARGUMENT...]: builds and runs the tests, adds up what they say.
run_tests() {
  local dir=$1 name counts p f s status=0
  name=$(basename "$dir")
  shift
  run_logged "build the tests of $name" "$dir/build-tests.log" make -C "$dir" -j"$jobs" check "$@" TESTS= || return 1
  touch "$dir/tests-started"
  # Tests wait more than they compute.
  run_watched "the tests of $name" "$dir/tests.log" make -C "$dir" -j$((2 * jobs)) -k check "$@" || status=$?
  counts=$("$root/scripts/count-tests" "$dir" 2>"$dir/tests-told.log") || return 1
  cat "$dir/tests-told.log"
  read -r p f s <<<"$counts"
  if [ $status != 0 ]; then
    {
      progress "FAILED: the tests of $name"
      sed -n '/ failed, see /,/^    [^ ]/p' "$dir/tests-told.log"
      run_failed_alone "$dir" "$@"
    } | remember_failure
  fi
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
  return $status
}

# Stages with real programs and guests wait more than they compute. Meanwhile, with what they leave of the CPUs, the tests
# that stages behind them run are compiled. What fails is left to those stages, which try again.
prebuild() {
  local name
  renice -n 19 "$BASHPID"
  for name in "$@"; do
    "${name}_configure" && make -C "$build_root/$name" -j"$jobs" check TESTS=
    touch "$build_root/$name/prebuilt"
  done
}
prebuild_in_background() {
  rm -f "$build_root"/{asan,tsan}/prebuilt
  set -m  # a process group of its own
  prebuild "$@" </dev/null >"$build_root/prebuild.log" 2>&1 &
  prebuilder=$!
  set +m
  trap 'signal_prebuilder TERM' EXIT
}
prebuilder=
signal_prebuilder() { [ -z "$prebuilder" ] || kill "-$1" -- "-$prebuilder" 2>/dev/null; }
wait_until_prebuilt() {
  while [ -n "$prebuilder" ] && [ ! -f "$build_root/$1/prebuilt" ] && kill -0 "$prebuilder" 2>/dev/null; do sleep 1; done
}

# The plain build, installed into its own stage/; other stages look at it. It is built as distributions build: optimised, with the
# checks of _FORTIFY_SOURCE. So are its tests, as the programs are that use the libraries; sanitizers' tests are not optimised.
# In what g++ 12 inlines of the standard library and GoogleTest it finds mistakes that are none.
plain_flags="-O2 -g1 -D_FORTIFY_SOURCE=2" tests_flags="-Wno-array-bounds -Wno-maybe-uninitialized -Wno-restrict -Wno-stringop-overflow"
export TESTS_CXXFLAGS=
plain_configure() { TESTS_CXXFLAGS=$tests_flags configure_in "$build_root/gcc" gcc g++ "$plain_flags" --enable-werror; }
plain_build() { plain_configure && build_and_install "$build_root/gcc"; }

# counted LOG COMMAND...: a command that is one check.
counted() {
  local log=$1
  shift
  if run_logged "$(basename "$1")" "$log" "$@"; then
    tail -n 1 "$log" | sed 's/^/    /'
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    return 1
  fi
}

stage_gcc() {
  local dir=$build_root/gcc
  plain_build && run_logged "build the benchmarks" "$dir/benchmarks.log" make -C "$dir" -j"$jobs" benchmarks && run_tests "$dir"
}

stage_headers() {
  counted "$build_root/headers.log" "$root/tests/abi/check_headers.sh" "$root" &&
    counted "$build_root/rooms.log" "$root/tests/abi/check_rooms.py" "$root" &&
    counted "$build_root/descriptors.log" "$root/tests/abi/check_descriptors.py" "$root" &&
    counted "$build_root/classes.log" "$root/tests/abi/check_classes.py" "$root"
}

stage_exports() {
  plain_build && counted "$build_root/exports.log" "$root/tests/abi/check_exports.sh" "$root" "$build_root/gcc/stage/lib" &&
    counted "$build_root/globals.log" "$root/tests/abi/check_globals.py" "$root" "$build_root/gcc"
}

stage_cost() {
  local dir=$build_root/gcc script log status=0
  plain_build && run_logged "build what is counted" "$dir/cost.log" make -C "$dir" -j"$jobs" \
    tests/bench/preload_cost tests/vma/udp_cost tests/vma/echo_service || return 1
  for script in tests/bench/preload_cost.sh tests/vma/udp_cost.sh; do
    log=$dir/$(basename "$script").log
    run_logged "$script" "$log" env -C "$dir" "$root/$script" || status=$?
    skip_reason=$(tail -n 1 "$log")
    [ $status = 0 ] || return $status
    passed=$((passed + 1))
    say "    $skip_reason"
  done
}

# run_verdicts NAME LOG COMMAND...: adds up what a command says, "ok ...", "not ok ...", "skip ..." or "ok ... # SKIP" a line.
# 77, with its last line as the reason, when it skipped everything.
run_verdicts() {
  local name=$1 log=$2 p f s status=0
  shift 2
  run_logged "$name" "$log" "$@" || status=$?
  skip_reason=$(tail -n 1 "$log" | sed 's/^1\.\.0 # SKIP //')
  s=$(grep -c '^ok .* # SKIP' "$log") p=$(($(grep -c '^ok ' "$log") - s)) f=$(grep -c '^not ok ' "$log")
  s=$((s + $(grep -c '^skip ' "$log")))
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
  return $status
}

stage_tools() {
  plain_build || return 1
  run_verdicts "upstream's tools" "$build_root/tools.log" "$root/tests/apps/upstream_tools.sh" "$build_root/gcc/stage"
}

stage_programs() {
  local options=()
  [ "$long" = no ] || options=(--long)
  plain_build || return 1
  run_verdicts "programs over librspreload" "$build_root/programs.log" "$root/tests/apps/programs/run_programs.py" run \
    --preload "$build_root/gcc/stage/lib/rsocket/librspreload.so" "${options[@]}"
}

stage_suites() {
  local status=0
  plain_build || return 1
  run_verdicts "other projects' test suites" "$build_root/suites.log" "$root/tests/apps/suites/run_suites.py" \
    --library "$build_root/gcc/stage/lib/rsocket/librspreload.so" --udp-library "$build_root/gcc/stage/lib/libvma.so" --work "$build_root/suites" || status=$?
  grep -E '^(not ok|skip) ' "$build_root/suites.log" | sed 's/^/    /'
  return $status
}

stage_attacks() {
  local dir=$build_root/gcc
  plain_build && run_logged "build the attacks" "$dir/attacks.log" make -C "$dir" -j"$jobs" attack-tools || return 1
  local status=0
  signal_prebuilder STOP  # how long honest clients wait is counted
  run_verdicts "attacks by other users" "$build_root/attacks.log" "$root/tests/attacks/run_attacks.py" \
    --stage "$dir/stage" --tools "$dir/tests/attacks" || status=$?
  signal_prebuilder CONT
  grep -E '^(ok|not ok|skip) ' "$build_root/attacks.log" | sed 's/^/    /'
  return $status
}

stage_vma() {
  local options=()
  [ "$long" = no ] || options=(--long)
  plain_build || return 1
  run_verdicts "programs over libvma" "$build_root/vma-programs.log" "$root/tests/vma/programs/run_programs.py" \
    --library "$build_root/gcc/stage/lib/libvma.so" "${options[@]}"
}

# run_matrix NAME OPTION...: cells of the matrix, in vm-NAME.log. A cell that upstream cannot pass says so; it counts as skipped.
# Each run that was repeated because of the emulated device's driver is told.
run_matrix() {
  local log=$build_root/vm-$1.log status=0
  run_verdicts "the matrix in a guest: $1" "$log" "$root/tests/vm/run_matrix" --stage "$build_root/gcc/stage" "${@:2}" || status=$?
  sed -n 's/^# \(repeated: .*\)/    \1/p' "$log"
  return $status
}

stage_vm() {
  plain_build || return 1
  signal_prebuilder STOP  # the guest's clock goes on while it waits for a CPU
  run_guests
  local status=$?
  signal_prebuilder CONT
  return $status
}

run_guests() {
  if [ "$long" = no ]; then
    run_matrix short && run_matrix captured --wire --only captured
  else
    run_matrix full --full && run_matrix wire --wire --full &&
      counted "$build_root/vm-numbers.log" "$root/tests/vm/run_numbers" --stage "$build_root/gcc/stage"
  fi
}

# The largest test programs take four minutes with a sanitizer where CPUs are far from each other.
sanitized_time="TEST_TIME_LIMIT=600"

# By clang++, which warns of other things than g++, and has libFuzzer. Not optimised: compiling is most of the time.
asan_configure() {
  configure_in "$build_root/asan" clang clang++ "-O0 -g1" --enable-werror --enable-asan --enable-ubsan --enable-fuzzers
}

stage_asan() {
  wait_until_prebuilt asan
  asan_configure || return 1
  ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1 UBSAN_OPTIONS=print_stacktrace=1 \
    run_tests "$build_root/asan" "$sanitized_time"
}

# Not by clang++: a preloaded library does not see what its runtime, a part of each program, takes note of.
tsan_configure() {
  TESTS_CXXFLAGS="-O0" configure_in "$build_root/tsan" gcc g++ "-O1 -g1" --enable-werror --enable-tsan
}

stage_tsan() {
  wait_until_prebuilt tsan
  tsan_configure || return 1
  # The processes that tests fork off start threads.
  TSAN_OPTIONS="suppressions=$root/tests/tsan.supp history_size=4 die_after_fork=0" run_tests "$build_root/tsan" "$sanitized_time"
}

stage_fuzz() {
  local dir=$build_root/asan runs=20000 target status=0 runtime
  [ "$long" = no ] || runs=2000000
  asan_configure || return 1
  # libFuzzer comes before the sanitizers' library in its programs, which wants to be first.
  runtime=$(clang++ -print-file-name="libclang_rt.asan-$(uname -m).so")
  run_logged "build the fuzz targets" "$dir/build.log" make -C "$dir" -j"$jobs" fuzzers || return 1
  for target in $(make -s -C "$dir" list-fuzzers); do
    mkdir -p "$dir/corpus/$(basename "$target")"
    # New inputs go to the first directory; the stored corpus is read only.
    if run_logged "$target" "$dir/$target.log" env LD_PRELOAD="$runtime" "$dir/$target" -runs=$runs -max_total_time=300 -timeout=10 -rss_limit_mb=4096 \
      -artifact_prefix="$dir/" "$dir/corpus/$(basename "$target")" "$root/tests/fuzz/corpus/$(basename "$target" _fuzzer)"; then
      passed=$((passed + 1))
    else
      failed=$((failed + 1)) status=1
    fi
  done
  return $status
}

# With the flags of the plain build and its tests, so that the compiler's cache has most of it. The tests ran already: here
# it is some that read files of the tarball.
stage_dist() {
  local only=(AM_MAKEFLAGS="TESTS='tests/unit/config/config_test tests/unit/config/vma_test tests/fuzz/rs_connect_fuzz \
    tests/preload/calls_test.sh'")
  [ "$long" = no ] || only=()
  plain_build && run_logged distcheck "$build_root/gcc/distcheck.log" make -C "$build_root/gcc" -j"$jobs" distcheck "${only[@]}" \
    DISTCHECK_CONFIGURE_FLAGS="CC='$(cached gcc)' CXX='$(cached g++)' CFLAGS='$plain_flags' CXXFLAGS='$plain_flags' \
      TESTS_CXXFLAGS='$tests_flags' --enable-werror" && passed=$((passed + 1))
}

sources() { git -C "$root" ls-files -- {core,librsocket,libvmacompat,preload,include,tools,tests}/'*'.{h,cc}; }

stage_format() {
  local log=$build_root/format.log
  if ! git -C "$root" rev-parse --git-dir >/dev/null 2>&1; then
    skip_reason="not a git working tree"
    return 77
  fi
  # shellcheck disable=SC2046
  (cd "$root" && clang-format --dry-run -Werror $(sources)) >"$log" 2>&1
  local status=$?
  if [ $status != 0 ]; then
    {
      progress "FAILED: clang-format -i is owed to (lines, file):"
      sed -n 's/^\([^:]*\):[0-9]*:[0-9]*: .*clang-format-violations.*/\1/p' "$log" | sort | uniq -c | sed 's/^/    /'
    } | remember_failure
    return 1
  fi
  passed=$((passed + 1))
}

# Every file whose text, headers and all, has not passed before; those that were changed last come first. Half a minute of CPU
# time a file would be an hour for all of them: what does not fit into tidy_seconds is told, and left to the next run or to --long.
tidy_seconds=240
stage_tidy() {
  local files=() log=$build_root/tidy.log end status=0
  if ! git -C "$root" rev-parse --git-dir >/dev/null 2>&1; then
    skip_reason="not a git working tree"
    return 77
  fi
  mapfile -t files < <(cd "$root" && { git diff --name-only HEAD; git log --name-only --pretty=; git ls-files; } | awk '!seen[$0]++' |
    grep -E '^(core|librsocket|libvmacompat|preload|tools)/.*\.cc$' | while read -r file; do [ ! -f "$file" ] || echo "$file"; done)
  plain_configure || return 1
  end=$(($(date +%s) + tidy_seconds))
  [ "$long" = no ] || end=$((end + 24 * 3600))
  printf '%s\n' "${files[@]}" >"$build_root/tidy-files"
  run_logged "clang-tidy" "$log" env -C "$root" CONFIGURED="$build_root/gcc" \
    xargs -a "$build_root/tidy-files" -n 1 -P "$jobs" scripts/tidy-file "$end" || status=$?
  find "${RINGSOCK_TIDY_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ringsock-tidy}" -type f -mtime +60 -delete 2>/dev/null
  printf '    %s files looked at, %s unchanged since they passed, %s not looked at within %s s\n' \
    "$(grep -c '^ok ' "$log")" "$(grep -c '^known ' "$log")" "$(grep -c '^late ' "$log")" $tidy_seconds
  [ $status != 0 ] || passed=$((passed + 1))
  return $status
}
