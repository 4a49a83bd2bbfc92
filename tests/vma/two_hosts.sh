#!/bin/bash
# Runs a test program on one of two hosts joined by a cable (network namespaces, a veth pair), beside an echo service
# on the other: two_hosts.sh PROGRAM [ARGUMENT...]
# TWO_HOSTS_PRELOAD: a library for the program. TWO_HOSTS_PEER_PRELOAD: one for the service.
# The program's host is 10.9.0.1 and fd09::1, also 10.9.0.3 and fd09::3, the other 10.9.0.2 and fd09::2.
set -u
if [ "$(id -u)" != 0 ] || ! ip netns add "rs-probe-$$" 2>/dev/null; then
  echo "1..0 # SKIP network namespaces need root"
  exit 77
fi
ip netns delete "rs-probe-$$"

here=rs-here-$$ there=rs-there-$$ service=
clean_up() {
  [ -n "$service" ] && kill "$service" 2>/dev/null && wait "$service" 2>/dev/null
  ip netns delete "$here" 2>/dev/null
  ip netns delete "$there" 2>/dev/null
}
trap clean_up EXIT

ip netns add "$here" && ip netns add "$there" || exit 99
ip link add eth0 netns "$here" type veth peer name eth0 netns "$there" || exit 99
for host in "$here:1" "$there:2"; do
  name=${host%:*} number=${host#*:}
  ip -n "$name" link set lo up
  ip -n "$name" address add "10.9.0.$number/24" dev eth0
  ip -n "$name" address add "fd09::$number/64" dev eth0 nodad
  ip -n "$name" link set eth0 up
done
ip -n "$here" address add 10.9.0.3/24 dev eth0
ip -n "$here" address add fd09::3/64 dev eth0 nodad preferred_lft 0
# As many refusals as there are questions: no kind of message is limited, neither to one host nor to all together.
ip netns exec "$there" sh -c 'cd /proc/sys/net; echo 0 >ipv4/icmp_ratelimit; echo 0 >ipv6/icmp/ratelimit
  echo 0 >ipv4/icmp_ratemask; echo >ipv6/icmp/ratemask'

# AddressSanitizer's runtime must come before every other library.
runtime=$(ldd "$1" | awk '/lib(clang_rt\.)?asan/ { print $3; exit }')
in_host() { # NAMESPACE LIBRARY PROGRAM...
  local namespace=$1 library=$2
  shift 2
  exec ip netns exec "$namespace" env ${library:+LD_PRELOAD="${runtime:+$runtime:}$library"} "$@"
}
export TWO_HOSTS_PEER=$there
ready=$(mktemp -u)
mkfifo "$ready"
in_host "$there" "${TWO_HOSTS_PEER_PRELOAD:-}" "$(dirname "$1")/echo_service" >"$ready" &
service=$!
read -r _ <"$ready"
rm -f "$ready"
(in_host "$here" "${TWO_HOSTS_PRELOAD:-}" "$@")
status=$?
if [ $status != 0 ]; then
  # It may be a packet that the hosts have lost.
  for host in "$here" "$there"; do
    ip netns exec "$host" sh -c "ip -s -s link show dev eth0; grep -v '[[:space:]]0$' /proc/net/snmp6; cat /proc/net/softnet_stat" |
      sed 's/^/host: /'
  done
fi
exit $status
