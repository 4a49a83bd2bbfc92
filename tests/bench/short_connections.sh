#!/bin/bash
# Short connections of unmodified programs, over the kernel's TCP and with librspreload at both ends, in turns: medians of 5.
# The programs: one of connect, a byte each way, close, or connect, a request, a file, close; and nginx with ab without
# keep-alive, 16 at a time, where both are installed.
# Usage: short_connections.sh [LIBRARY [all | files]], in the build directory. The second word chooses rows.
set -euo pipefail
library=${1:-$PWD/stage/lib/rsocket/librspreload.so} program=$PWD/tests/bench/short_connections runs=5
[ -e "$library" ] && [ -x "$program" ] || { echo "make install and tests/bench/short_connections first"; exit 1; }
dir=$(mktemp -d) started=
trap '[ -z "$started" ] || kill $started 2>/dev/null; rm -rf "$dir"' EXIT
chmod 755 "$dir"

# over WAY COMMAND...: WAY is kernel or ring
over() {
  local way=$1
  shift
  if [ "$way" = ring ]; then env LD_PRELOAD="$library" "$@"; else "$@"; fi
}

# by_program WAY WORKERS: connections per second
by_program() {
  local port
  # Not by over(): what is killed must be the program, not a shell that waits for it.
  local preload=
  [ "$1" = kernel ] || preload=$library
  LD_PRELOAD=$preload "$program" server "$2" >"$dir/port" &
  started=$!
  until [ -s "$dir/port" ]; do sleep 0.05; done
  port=$(cat "$dir/port")
  over "$1" "$program" client "$port" 1000 >/dev/null
  over "$1" "$program" client "$port" 8000
  kill $started && wait $started 2>/dev/null || true
  started=
  rm "$dir/port"
}

# by_files WAY BYTES CONNECTIONS: files per second, each over a connection of its own
by_files() {
  local port preload=
  [ "$1" = kernel ] || preload=$library
  LD_PRELOAD=$preload "$program" file-server 0 >"$dir/port" &
  started=$!
  until [ -s "$dir/port" ]; do sleep 0.05; done
  port=$(cat "$dir/port")
  over "$1" "$program" fetch "$port" $(($3 / 10)) 1 "$2" >/dev/null
  over "$1" "$program" fetch "$port" "$3" 1 "$2"
  kill $started && wait $started 2>/dev/null || true
  started=
  rm "$dir/port"
}

# by_nginx WAY WORKERS [BYTES [REQUESTS]]: requests per second; nginx becomes a daemon, and its workers another user, as it is installed
by_nginx() {
  local port=$((10000 + RANDOM % 20000))
  head -c "${3:-1000}" /dev/zero >"$dir/small"
  cat >"$dir/conf" <<CONF
worker_processes $2; pid $dir/pid; error_log $dir/error.log; user ${nginx_user};
events { worker_connections 1024; }
http { access_log off; client_body_temp_path $dir/b; proxy_temp_path $dir/p; fastcgi_temp_path $dir/f;
  uwsgi_temp_path $dir/u; scgi_temp_path $dir/s; server { listen 127.0.0.1:$port; root $dir; } }
CONF
  over "$1" nginx -c "$dir/conf"
  until [ -s "$dir/pid" ]; do sleep 0.05; done
  sleep 0.2
  over "$1" ab -q -n 1000 -c 16 "http://127.0.0.1:$port/small" >/dev/null
  over "$1" ab -q -n "${4:-8000}" -c 16 "http://127.0.0.1:$port/small" | sed -n 's/^Requests per second: *\([0-9]*\).*/\1/p'
  kill "$(cat "$dir/pid")"
  while [ -e "$dir/pid" ]; do sleep 0.05; done
}

# row TEXT MEASURE...: MEASURE WAY for both ways in turns
row() {
  local text=$1 kernel=() ring=() i
  shift
  for ((i = 0; i < runs; ++i)); do
    kernel+=("$("$1" kernel "${@:2}")")
    ring+=("$("$1" ring "${@:2}")")
  done
  kernel=($(printf '%s\n' "${kernel[@]}" | sort -n)) ring=($(printf '%s\n' "${ring[@]}" | sort -n))
  printf '%-52s %9s %9s %7s\n' "$text" "${kernel[runs / 2]}" "${ring[runs / 2]}" \
    "$(awk "BEGIN { printf \"%.2f\", ${ring[runs / 2]} / ${kernel[runs / 2]} }")"
}

printf '%-52s %9s %9s %7s\n' "connections per second" kernel ring ratio
for file in "1 B:1:8000" "16 KiB:16384:8000" "64 KiB:65536:4000" "256 KiB:262144:3000" "1 MiB:1048576:1000" \
  "8 MiB:8388608:100"; do
  IFS=: read -r size bytes connections <<<"$file"
  row "a file of $size for each connection" by_files "$bytes" "$connections"
done
if command -v nginx >/dev/null && command -v ab >/dev/null; then
  nginx_user=$(id -un)
  row "nginx, ab -c 16, 1 worker of ab's user, 100 KiB" by_nginx 1 102400 4000
  row "nginx, ab -c 16, 1 worker of ab's user, 1 MiB" by_nginx 1 1048576 1000
fi
[ "${2:-all}" = all ] || exit 0
row "connect, 1 B each way, close; one server process" by_program 0
row "the same, the listener shared by 4 processes" by_program 4
if command -v nginx >/dev/null && command -v ab >/dev/null; then
  for workers in 1 2; do
    nginx_user=$(id -un)
    row "nginx, ab -c 16, $workers worker(s) of ab's user" by_nginx "$workers"
    [ "$(id -u)" = 0 ] || continue
    nginx_user=www-data
    row "nginx, ab -c 16, $workers worker(s) of its own user" by_nginx "$workers"
  done
else
  echo "nginx and ab are not both installed: skipped"
fi
