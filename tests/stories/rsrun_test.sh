#!/bin/sh
# rsrun: what it sets, what it refuses. Runs in the build directory.
rsrun=./tools/rsrun
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failures=0
# Not a library: the loader says so on stderr and goes on without it.
library=$work/library.so
: >"$library"

# expect NAME WANTED GOT
expect() {
  [ "$2" = "$3" ] && return
  echo "$1: expected \"$2\", got \"$3\""
  failures=$((failures + 1))
}
# shows VARIABLE [option ...]: its value in a program under rsrun
shows() {
  variable=$1
  shift
  "$rsrun" --library "$library" "$@" sh -c "printf %s \"\$$variable\"" 2>/dev/null
}
# refuses NAME STATUS TEXT command...
refuses() {
  name=$1 status=$2 text=$3
  shift 3
  output=$("$@" 2>&1)
  expect "$name: status" "$status" $?
  case $output in
    *"$text"*) ;;
    *) expect "$name: message" "$text" "$output" ;;
  esac
}

unset LD_PRELOAD RINGSOCK_STATS RINGSOCK_LOG RINGSOCK_DEVICE RINGSOCK_POLLING_TIME RINGSOCK_CONFIG_DIR
expect "the library is preloaded" "$library" "$(shows LD_PRELOAD)"
expect "what was preloaded stays" "$library:$work/other.so" "$(LD_PRELOAD=$work/other.so shows LD_PRELOAD)"
expect "not twice" "$work/other.so:$library" "$(LD_PRELOAD=$work/other.so:$library shows LD_PRELOAD)"
# A sanitizer's runtime wants to be the first library of a program.
if ! nm -D .libs/libvma.so | grep -q '__[at]san_init'; then
  expect "--vma" "$library:$PWD/.libs/libvma.so" "$(shows LD_PRELOAD --vma)"
fi
expect "nothing else is set" "" "$(shows RINGSOCK_STATS)$(shows RINGSOCK_LOG)$(shows RINGSOCK_POLLING_TIME)"
expect "--stats" 1 "$(shows RINGSOCK_STATS --stats)"
expect "--log" debug "$(shows RINGSOCK_LOG --log debug)"
expect "--device" soft "$(shows RINGSOCK_DEVICE -d soft)"
expect "--polling-time" 50 "$(shows RINGSOCK_POLLING_TIME -t50)"
expect "--config-dir" "$work" "$(shows RINGSOCK_CONFIG_DIR --config-dir="$work")"
expect "the program's options are the program's" "-s --help" "$("$rsrun" --library "$library" echo -s --help 2>/dev/null)"
"$rsrun" --library "$library" sh -c 'exit 7' 2>/dev/null
expect "the program's status is rsrun's" 7 $?

refuses "no program" 125 "which program?" "$rsrun"
refuses "unknown option" 125 "usage: rsrun" "$rsrun" --nonsense true
refuses "wrong level" 125 "--log takes none" "$rsrun" --log loud true
refuses "wrong device" 125 "--device takes auto" "$rsrun" --device mlx5_0 true
refuses "wrong time" 125 "--polling-time takes 0" "$rsrun" -t -1 true
refuses "missing directory" 125 "No such file" "$rsrun" -c "$work/absent" true
refuses "a file as directory" 125 "not a directory" "$rsrun" -c "$library" true
refuses "missing library" 125 "$work/absent.so: No such file" "$rsrun" --library "$work/absent.so" true
refuses "a name that the loader would split" 125 "no blank or colon" "$rsrun" --library "$work/a b.so" true
refuses "missing program" 127 "no-such-program: No such file" "$rsrun" --library "$library" no-such-program
refuses "program that is none" 126 "Permission denied" "$rsrun" --library "$library" "$library"
refuses "help" 0 "usage: rsrun" "$rsrun" --help

[ $failures -eq 0 ] && echo "rsrun: all expectations hold"
exit $((failures > 0))
