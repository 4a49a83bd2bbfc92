#!/bin/bash
# Debian's sockperf between two hosts (network namespaces): sockperf_pair.sh LIBRARY ping-pong|throughput
# Both ends run with LIBRARY preloaded, or on the kernel's sockets when it is empty. The last line of the output is the figure:
# microseconds one way, or datagrams sent per second.
# sockperf_pair.sh --probe: whether namespaces can be made here.
set -u
here=rs-here-$$ there=rs-there-$$ server=
clean_up() {
  [ -n "$server" ] && kill "$server" 2>/dev/null && wait "$server" 2>/dev/null
  ip netns delete "$here" 2>/dev/null
  ip netns delete "$there" 2>/dev/null
}
trap clean_up EXIT
ip netns add "$here" 2>/dev/null || exit 1
[ "$1" != --probe ] || exit 0
ip netns add "$there" || exit 1
ip link add eth0 netns "$here" type veth peer name eth0 netns "$there" || exit 1
for host in "$here:1" "$there:2"; do
  ip -n "${host%:*}" link set lo up
  ip -n "${host%:*}" address add "10.9.0.${host#*:}/24" dev eth0
  ip -n "${host%:*}" link set eth0 up
done
library=$1 mode=$2
export VMA_TRACELEVEL=warning
in_host() { # NAMESPACE COMMAND...
  local namespace=$1
  shift
  exec ip netns exec "$namespace" env ${library:+LD_PRELOAD="$library"} "$@"
}
(in_host "$there" sockperf server -i 10.9.0.2 -p 11111) >/dev/null 2>&1 &
server=$!
for _ in $(seq 100); do
  ip netns exec "$there" ss -Huln "sport = :11111" 2>/dev/null | grep -q . && break
  sleep 0.05
done
output=$(in_host "$here" timeout 30 sockperf "$mode" -i 10.9.0.2 -p 11111 -t 2 -m 64 2>&1) || { echo "$output"; exit 1; }
case $mode in
  ping-pong) awk '/Summary: Latency is/ { found = 1; print $5 } END { exit !found }' <<<"$output" ;;
  *) awk '/Summary: Message Rate is/ { found = 1; print $6 } END { exit !found }' <<<"$output" ;;
esac
