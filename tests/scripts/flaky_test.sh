#!/usr/bin/env bash
# ./check runs a failed test once more, alone, tells FLAKY from FAILED, and counts both as failed. The tests here are a stand-in for
# automake's: they leave the same .trs and .log files.
set -uo pipefail
unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES  # of the make that runs this test
export RINGSOCK_BUILD_DIR
RINGSOCK_BUILD_DIR=$(mktemp -d)
trap 'rm -rf "$RINGSOCK_BUILD_DIR"' EXIT
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/lib.sh"
. "$root/scripts/stages.sh"
dir=$build_root/sham
failures=$build_root/failures.log

complain() {
  echo "flaky_test: $*"
  status=1
}
status=0

# run_case STEADY SHAKY BROKEN: how these three tests end beside others; alone the first two pass. Sets told, result and the counts.
run_case() {
  rm -rf "$dir" && mkdir -p "$dir/tests"
  : >"$failures"
  cat >"$dir/Makefile" <<MAKE
TESTS = steady shaky broken
check:
	@set -- $*; for t in \$(TESTS); do echo "output of \$\$t" >tests/\$\$t.log; echo ":test-result: \$\$1" >tests/\$\$t.trs; shift; done
	@[ -z "\$(TESTS)" ] || ! grep -q FAIL tests/*.trs
recheck:
	@for t in \$\$(cd tests && grep -l FAIL *.trs); do r=PASS; [ \$\$t != broken.trs ] || r=FAIL; echo ":test-result: \$\$r" >tests/\$\$t; done
	@! grep -q FAIL tests/*.trs
MAKE
  passed=0 failed=0 skipped=0 result=0
  run_tests "$dir" >"$build_root/told" 2>&1 || result=$?
  told=$(cat "$build_root/told")
}

expect() { # PASSED FAILED SKIPPED RESULT(0 or 1)
  [ "$passed $failed $skipped $((result != 0))" = "$*" ] || complain "$passed passed, $failed failed, $skipped skipped, result $result instead of $*: $told"
}

run_case PASS PASS SKIP
expect 2 0 1 0
[[ $told != *FLAKY* && $told != *FAILED* ]] || complain "nothing failed: $told"

run_case PASS FAIL PASS
expect 2 1 0 1
grep -q 'FLAKY (passes alone): tests/shaky, ' "$failures" || complain "a flaky test is not remembered: $told"
grep -q 'output of shaky' "$dir/failed-logs/tests/shaky.log" || complain "the log of the first run is not kept"

run_case PASS FAIL FAIL
expect 1 2 0 1
[[ $told == *"FLAKY (passes alone): tests/shaky, "* && $told == *"FAILED (alone, too): tests/broken, "* ]] || complain "$told"
[[ $told != *tests/steady* ]] || complain "a test that passed is told: $told"

most_run_alone=1
run_case PASS FAIL FAIL
expect 1 2 0 1
[[ $told == *"too many to run each alone"* ]] || complain "$told"

exit $status
