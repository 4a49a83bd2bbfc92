#!/bin/bash
# Datagrams of unmodified programs on one host, over the kernel's UDP and with librspreload and datagrams_by_ring at both
# ends, in turns: medians of 5 and their ratio, above 1 where ours is the faster one. Programs of other people that are
# not installed have a line that says so, and so has a row that fails. Exit status: 0 no row has failed.
# Usage: datagrams.sh [LIBRARY [ROW...]], in the build directory. ROW is a pattern of the shell for the first word of a
# row: ping received sockperf memcached dnsperf clients alone. RUNS changes how many runs there are.
set -euo pipefail
library=${1:-$PWD/stage/lib/rsocket/librspreload.so} program=$PWD/tests/bench/datagrams runs=${RUNS:-5}
[ -e "$library" ] && [ -x "$program" ] || { echo "make install and tests/bench/datagrams first"; exit 1; }
shift || true
wanted=("${@:-*}")
dir=$(mktemp -d) started='' measuring='' failed=0
trap '[ -z "$measuring" ] || { kill $measuring && wait $measuring; } 2>/dev/null; rm -rf "$dir"' EXIT
mkdir "$dir/options"
echo 1 >"$dir/options/datagrams_by_ring"
chmod -R 755 "$dir"
PATH=$PATH:/usr/sbin

# over WAY COMMAND...: WAY is kernel or ring. The command takes the place of a shell that was started for it.
over() {
  local way=$1
  shift
  if [ "$way" = ring ]; then
    exec env LD_PRELOAD="$library" RINGSOCK_CONFIG_DIR="$dir/options" "$@"
  else
    exec "$@"
  fi
}

# serve WAY COMMAND...: starts a server. Its output is in $dir/server.
serve() {
  : >"$dir/server"
  (over "$@") >"$dir/server" 2>"$dir/errors" &
  started=$!
}

# serve_and_get_port WAY MODE...: starts the program, whose first line is its port.
serve_and_get_port() {
  serve "$1" "$program" "${@:2}"
  until [ -s "$dir/server" ]; do sleep 0.02; done
  read -r port <"$dir/server"
}

end_server() {
  [ -n "$started" ] || return 0
  kill $started 2>/dev/null || true
  wait $started 2>/dev/null || true
  started=
}

# await_port PORT: waits until a UDP socket has the port
await_port() {
  local i
  for ((i = 0; i < 200; ++i)); do
    ! ss -Hlun "sport = :$1" | grep -q . || return 0
    sleep 0.05
  done
  echo "nobody has port $1: $(head -3 "$dir/errors")" >&2
  exit 1
}

a_port() { port=$((10000 + RANDOM % 20000)); }

# by_ping WAY BYTES [WAY_OF_SERVER]: nanoseconds of one way
by_ping() {
  serve_and_get_port "${3:-$1}" echo
  (over "$1" "$program" ping "$port" "$2" 50000)
  end_server
}

# by_flood WAY BYTES [WAY_OF_RECEIVER]: datagrams received per second
by_flood() {
  serve_and_get_port "${3:-$1}" sink "$2"
  (over "$1" "$program" flood "$port" "$2" 1.5 >/dev/null)
  wait $started
  started=
  tail -1 "$dir/server"
}

# by_sent WAY BYTES WAY_OF_RECEIVER: datagrams sent per second
by_sent() {
  serve_and_get_port "$3" sink "$2"
  (over "$1" "$program" flood "$port" "$2" 1.5)
  wait $started
  started=
}

# by_many WAY CLIENTS BYTES: round trips per second of all
by_many() {
  serve_and_get_port "$1" echo
  (over "$1" "$program" many "$port" "$2" 2 "$3")
  end_server
}

# by_memcached WAY CLIENTS: gets per second. Rings are for processes of one user, so memcached stays ours.
by_memcached() {
  a_port
  serve "$1" memcached -u "$(id -un)" -l 127.0.0.1 -p "$port" -U "$port"
  await_port "$port"
  printf 'set key 0 0 32\r\n%032d\r\nquit\r\n' 7 | (exec 3<>"/dev/tcp/127.0.0.1/$port" && cat >&3 && cat <&3) >/dev/null
  (over "$1" "$program" memcached "$port" "$2" 2)
  end_server
}

# by_sockperf WAY: microseconds of one way. sockperf has room for 600,000 messages per second, and ends where they are
# more, so it sends no more than 500,000.
by_sockperf() {
  a_port
  serve "$1" sockperf server -i 127.0.0.1 -p "$port"
  await_port "$port"
  (over "$1" sockperf ping-pong -i 127.0.0.1 -p "$port" -m 64 -t 2 --mps 500000) 2>&1 |
    tee "$dir/output" |
    sed -n 's/.*Latency is \([0-9.]*\) usec.*/\1/p'
  grep ERROR "$dir/output" >&2 || true
  end_server
}

# by_dns WAY SERVER: queries per second
by_dns() {
  a_port
  case $2 in
    dnsmasq) serve "$1" dnsmasq -k -C /dev/null --user=root --port="$port" --listen-address=127.0.0.1 --bind-interfaces \
      --no-resolv --no-hosts --dns-forward-max=10000 --address=/a.test/192.0.2.1 --pid-file= ;;
    unbound)
      cat >"$dir/unbound.conf" <<CONF
server:
  interface: 127.0.0.1
  port: $port
  num-threads: 1
  do-daemonize: no
  username: ""
  chroot: ""
  directory: "$dir"
  pidfile: ""
  use-syslog: no
  module-config: "iterator"
  local-data: "a.test. A 192.0.2.1"
remote-control:
  control-enable: no
CONF
      serve "$1" unbound -d -c "$dir/unbound.conf"
      ;;
  esac
  await_port "$port"
  echo "a.test A" >"$dir/queries"
  (over "$1" dnsperf -s 127.0.0.1 -p "$port" -d "$dir/queries" -c "${3:-1}" -l 2 2>/dev/null) |
    sed -n 's/.*Queries per second: *\([0-9.]*\).*/\1/p'
  end_server
}

# measure COMMAND...: a number into $dir/result. In a shell of its own, which ends the server, and where a command that
# fails ends the measure.
measure() {
  (
    trap end_server EXIT
    "$@"
  ) >"$dir/result" 2>"$dir/failure" &
  measuring=$!
  local status=0
  wait $measuring || status=$?
  measuring=
  [ $status = 0 ] && [[ $(cat "$dir/result") =~ ^[0-9.]+$ ]]
}

# row WORD TEXT UNIT BETTER MEASURE...: MEASURE WAY for both ways in turns; BETTER is more or less
row() {
  local word=$1 text=$2 unit=$3 better=$4 kernel=() ring=() i way is_wanted=
  shift 4
  for i in "${wanted[@]}"; do
    # shellcheck disable=SC2053  # a pattern
    [[ $word != $i ]] || is_wanted=1
  done
  [ -n "$is_wanted" ] || return 0
  for ((i = 0; i < runs; ++i)); do
    for way in kernel ring; do
      if ! measure "$1" $way "${@:2}"; then
        echo "$text: failed, $way: $(tail -qn 1 "$dir/failure" "$dir/errors" | tr '\n' ' ')"
        failed=1
        return
      fi
      local -n results=$way
      results+=("$(cat "$dir/result")")
    done
  done
  mapfile -t kernel < <(printf '%s\n' "${kernel[@]}" | sort -g)
  mapfile -t ring < <(printf '%s\n' "${ring[@]}" | sort -g)
  awk -v t="$text" -v u="$unit" -v k="${kernel[runs / 2]}" -v r="${ring[runs / 2]}" -v better="$better" 'BEGIN {
    printf "%-56s %-8s %12.12s %12.12s %7.2f\n", t, u, k, r, better == "more" ? r / k : k / r }'
}

# row_of "PROGRAM..." ROW...: the row, if the programs are installed
row_of() {
  local each
  for each in $1; do
    command -v "$each" >/dev/null && continue
    echo "$3: $each is not installed"
    return
  done
  row "${@:2}"
}

printf '%-56s %-8s %12s %12s %7s\n' "datagrams of one host" unit kernel ring ratio
row ping "ping-pong, blocking, 64 B, one way" ns less by_ping 64
row ping "ping-pong, blocking, 1,400 B, one way" ns less by_ping 1400
row received "received, one direction, 64 B" /s more by_flood 64
row received "received, one direction, 1,400 B" /s more by_flood 1400
row_of memcached memcached "memcached, UDP get, 1 client" /s more by_memcached 1
row_of memcached memcached "memcached, UDP get, 16 clients" /s more by_memcached 16
row_of "dnsperf dnsmasq" dnsperf "dnsperf, dnsmasq" /s more by_dns dnsmasq
row_of "dnsperf unbound" dnsperf "dnsperf, unbound" /s more by_dns unbound
row_of sockperf sockperf "sockperf, ping-pong, 64 B, one way" us less by_sockperf
row clients "64 clients of one server, 64 B" /s more by_many 64 64
row alone "the library and no partner: ping-pong, 64 B" ns less by_ping 64 kernel
row alone "the library and no partner: sent, 64 B" /s more by_sent 64 kernel
[ $failed = 0 ]
