#!/usr/bin/env bash
# Debian's unmodified rstream, riostream and rcopy (rdmacm-utils) over librsocket: with each other and with our tools.
# Usage: upstream_tools.sh PREFIX      where librsocket and our tools are installed
# Prints "ok NAME", "not ok NAME" or "skip NAME" for each combination; exit status 1 when one failed, 77 when upstream's are not there.
set -uo pipefail
prefix=$1
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/lib.sh"
upstream=/usr/bin ours=$prefix/bin
export LD_LIBRARY_PATH=$prefix/lib

if [ ! -x $upstream/rstream ] || [ ! -x $upstream/riostream ] || [ ! -x $upstream/rcopy ]; then
  echo "package rdmacm-utils is not installed"
  exit 77
fi

work=$(mktemp -d)
server_pid=
clean_up() {
  [ -z "$server_pid" ] || kill "$server_pid" 2>/dev/null
  rm -rf "$work"
}
trap clean_up EXIT
failures=0

# program WHOSE NAME ARGUMENT...: runs it, upstream's with librsocket in front of librdmacm.
program() {
  local whose=$1 name=$2
  shift 2
  if [ "$whose" = upstream ]; then
    LD_PRELOAD=$prefix/lib/librsocket.so.1 exec "$upstream/$name" "$@"
  fi
  exec "$ours/$name" "$@"
}

start_server() {
  (program "$@") >"$work/server.log" 2>&1 </dev/null &
  server_pid=$!
}

# A server that is not there yet refuses; its client is run again, for 10 seconds at most.
run_client() {
  local deadline=$((SECONDS + 10)) status
  while :; do
    # timeout(1) needs a command of its own: the same script, with the client's part.
    timeout -k 5 60 "$BASH" -c '. "$0"' "$work/client.sh" >"$work/client.log" 2>&1 </dev/null
    status=$?
    if [ $status = 0 ] || [ $status -ge 124 ] || [ $SECONDS -ge $deadline ]; then return $status; fi
    kill -0 "$server_pid" 2>/dev/null || return $status
    sleep 0.05
  done
}
