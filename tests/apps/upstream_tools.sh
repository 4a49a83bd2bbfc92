#!/usr/bin/env bash
# Debian's unmodified rstream, riostream, rcopy and udpong (rdmacm-utils) over librsocket: with each other and with our tools, in all
# their modes but kernel sockets (-T s, and -T f which implies it).
# Usage: upstream_tools.sh PREFIX      where librsocket and our tools are installed
# Prints "ok NAME", "not ok NAME" or "skip NAME: reason" for each combination; exit status 1 when one failed, 77 when upstream's
# programs are not there.
set -uo pipefail
prefix=$1
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/lib.sh"
export LD_LIBRARY_PATH=$prefix/lib

for tool in rstream riostream rcopy udpong; do
  if [ ! -x /usr/bin/$tool ]; then
    echo "package rdmacm-utils is not installed"
    exit 77
  fi
done

work=$(mktemp -d)
server_pid=
clean_up() {
  [ -z "$server_pid" ] || kill "$server_pid" 2>/dev/null
  rm -rf "$work"
}
trap clean_up EXIT
failures=0

# command_of WHOSE TOOL: sets `words`, what starts upstream's or our program.
command_of() {
  if [ "$1" = upstream ]; then
    words=(env "LD_PRELOAD=$prefix/lib/librsocket.so.1" "/usr/bin/$2")
  else
    words=("$prefix/bin/$2")
  fi
}

# start_server WHOSE TOOL ARGUMENT...
start_server() {
  command_of "$1" "$2"
  timeout -k 5 200 "${words[@]}" "${@:3}" >"$work/server.log" 2>&1 </dev/null &
  server_pid=$!
  served=no
}

# run_client WHOSE TOOL ARGUMENT...: the first client of a server may come before the server listens. A client that says it was
# refused then starts again while the server starts, for at most 5 s. Every other failure is the client's, and so is a refusal after
# a client has been served.
run_client() {
  local status end=$((SECONDS + 5))
  command_of "$1" "$2"
  while :; do
    timeout -k 5 150 "${words[@]}" "${@:3}" >"$work/client.log" 2>&1 </dev/null
    status=$?
    if [ $status = 0 ]; then served=yes; fi
    if [ $served = yes ] || [ $SECONDS -ge $end ] || ! was_refused $status; then return $status; fi
    sleep 0.05
  done
}

# was_refused STATUS: whether the client ended by itself (a signal gives 128 and more, 255 is upstream's -1), having said so.
was_refused() {
  { [ "$1" -lt 124 ] || [ "$1" = 255 ]; } && grep -q 'Connection refused' "$work/client.log" && kill -0 "$server_pid" 2>/dev/null
}

# end_server: its exit status. rstream and riostream end with their client.
end_server() {
  local status
  wait "$server_pid"
  status=$?
  server_pid=
  return $status
}

stop_server() {
  kill "$server_pid" 2>/dev/null
  wait "$server_pid" 2>/dev/null
  server_pid=
}

report() { # NAME WHY: WHY is empty when all is well
  if [ -z "$2" ]; then
    echo "ok $1"
    return
  fi
  echo "not ok $1: $2"
  tail -n 5 "$work/server.log" | sed 's/^/    server: /'
  tail -n 5 "$work/client.log" | sed 's/^/    client: /'
  failures=$((failures + 1))
}

# stream_case TOOL SERVER CLIENT ADDRESS OPTION...: one run of rstream or riostream, the same options on both sides.
stream_case() {
  local tool=$1 server=$2 client=$3 address=$4 why="" port status name
  shift 4
  name="$tool $server<-$client $address $*"
  port=$(free_port)
  start_server "$server" "$tool" -b "$address" -p "$port" "$@"
  run_client "$client" "$tool" -s "$address" -p "$port" "$@"
  status=$?
  if grep -qE 'Bad value for ai_flags|rdma_getaddrinfo: No such device' "$work/client.log" "$work/server.log"; then
    stop_server
    echo "skip $name: rdma_getaddrinfo() of librdmacm needs an RDMA device"
    return
  fi
  if [ $status != 0 ]; then
    stop_server
    why="client ended with $status"
  elif ! end_server; then
    why="server failed"
  elif ! grep -qE '^[a-z0-9_]+ +[0-9.a-z]+ .*[0-9.]+s +[0-9.]+ +[0-9.]+$' "$work/client.log"; then
    why="no line of results"
  elif grep -qiE 'error|verif|fail' "$work/client.log" "$work/server.log"; then
    why="an error was printed"
  fi
  report "$name" "$why"
}

# datagram_case SERVER CLIENT ADDRESS OPTION...: one run of udpong, the same options on both sides. The server serves two clients.
datagram_case() {
  local server=$1 client=$2 address=$3 why="" port name
  shift 3
  name="udpong $server<-$client $address $*"
  port=$(free_port)
  start_server "$server" udpong -b "$address" -p "$port" "$@"
  for size in 16 1536; do
    if ! run_client "$client" udpong -s "$address" -p "$port" -C 500 -S $size "$@"; then
      why+="client failed ($size bytes); "
    elif ! grep -qE '^custom +[0-9.k]+ +[0-9.k]+ +[0-9.km]+ +[0-9.]+s +[0-9.]+ +[0-9.]+$' "$work/client.log"; then
      why+="no line of results ($size bytes); "
    fi
  done
  kill -0 "$server_pid" 2>/dev/null || why+="the server did not live on; "
  stop_server
  report "$name" "$why"
}

# copy_case SERVER CLIENT: several files to one server, and a client that fails in between.
copy_case() {
  local server=$1 client=$2 port size why="" name="rcopy $1<-$2"
  port=$(free_port)
  start_server "$server" rcopy -p "$port"
  for size in 1 4097 12345677; do
    head -c $size /dev/urandom >"$work/original"
    rm -f "$work/copy"
    run_client "$client" rcopy "$work/original" "127.0.0.1:$work/copy" -p "$port"
    local status=$? sum
    sum=$(sha256sum <"$work/original")
    [ $status = 0 ] || why+="client ended with $status ($size bytes); "
    [ -f "$work/copy" ] && [ "$sum" = "$(sha256sum <"$work/copy")" ] || why+="the copy of $size bytes differs; "
    command_of "$client" rcopy
    timeout 20 "${words[@]}" "$work/original" "127.0.0.1:$work/no/such/folder" -p "$port" >"$work/client.log" 2>&1 </dev/null
    [ ! -e "$work/no" ] || why+="a folder came into being; "
  done
  kill -0 "$server_pid" 2>/dev/null || why+="the server did not live on; "
  stop_server
  report "$name" "$why"
}

for pair in "upstream upstream" "upstream ours" "ours upstream" "ours ours"; do
  read -r server client <<<"$pair"
  custom=(-S 3000 -C 100 -I 20)
  stream_case rstream "$server" "$client" 127.0.0.1
  for mode in a b n r v; do stream_case rstream "$server" "$client" 127.0.0.1 -T $mode "${custom[@]}"; done
  stream_case rstream "$server" "$client" 127.0.0.1 -T b -T v -S 1000000 -C 10 -I 5
  stream_case rstream "$server" "$client" 127.0.0.1 -T a -T v -S 70000 -C 10 -I 5
  stream_case rstream "$server" "$client" 127.0.0.1 -B 8192 -T v "${custom[@]}"
  stream_case rstream "$server" "$client" 127.0.0.1 -i 0 "${custom[@]}"
  stream_case rstream "$server" "$client" 127.0.0.1 -i 1024 "${custom[@]}"
  stream_case rstream "$server" "$client" 127.0.0.1 -k 1 "${custom[@]}"
  stream_case rstream "$server" "$client" 127.0.0.1 -S all -C 20 -I 2
  stream_case rstream "$server" "$client" 127.0.0.1 -f ip "${custom[@]}"
  stream_case rstream "$server" "$client" ::1 -f ip -T b "${custom[@]}"
  stream_case riostream "$server" "$client" 127.0.0.1
  for mode in a b n v; do stream_case riostream "$server" "$client" 127.0.0.1 -T $mode "${custom[@]}"; done
  stream_case riostream "$server" "$client" 127.0.0.1 -T b -T v -S 1000000 -C 10 -I 5
  stream_case riostream "$server" "$client" 127.0.0.1 -B 8192 -i 0 "${custom[@]}"
  copy_case "$server" "$client"
  for mode in b n a; do
    datagram_case "$server" "$client" 127.0.0.1 -T $mode
    datagram_case "$server" "$client" 127.0.0.1 -T $mode -T e
  done
  datagram_case "$server" "$client" ::1 -T b -T e
done
[ $failures = 0 ]
