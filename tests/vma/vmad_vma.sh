#!/bin/bash
# vmad with clients: vmad_test beside a service of its own, whose socket and files no other process sees.
[ "$(id -u)" = 0 ] && unshare --mount --net true 2>/dev/null || { echo "1..0 # SKIP namespaces need root"; exit 77; }
if [ "${1:-}" != inside ]; then
  exec unshare --mount --net "$0" inside
fi
mount -t tmpfs tmpfs /run && mkdir -p /run/netns /run/lock || exit 99
ip link set lo up
place=$(mktemp -d)
service=
clean_up() {
  [ -n "$service" ] && kill "$service" 2>/dev/null && wait "$service"
  rm -rf "$place"
}
trap clean_up EXIT
export VMA_VMAD_NOTIFY_DIR=$place/vma
serve() { # OPTION...
  tools/vmad --console --verbose 5 --notify-dir "$VMA_VMAD_NOTIFY_DIR" --lock-file "$place/lock" --retry-interval 50 "$@" &
  service=$!
  while [ ! -S /var/run/vma_agent.sock ]; do sleep 0.01; done
}
serve
# A second one is refused.
tools/vmad --console --notify-dir "$VMA_VMAD_NOTIFY_DIR" --lock-file "$place/lock" && exit 1
tests/vma/vmad_test --gtest_filter='Resets.*' || exit 1
TWO_HOSTS_PRELOAD=$PWD/.libs/libvma.so "$(dirname "$0")/two_hosts.sh" tests/vma/vmad_test --gtest_filter='Clients.*' || exit 1
kill "$service" && wait "$service" || exit 1
[ ! -e /var/run/vma_agent.sock ] || exit 1
# Resets that the service sends itself; and files of a process that is no more are removed when it starts.
touch "$VMA_VMAD_NOTIFY_DIR/vma_agent.2147483647.pid"
serve --force-rst
[ ! -e "$VMA_VMAD_NOTIFY_DIR/vma_agent.2147483647.pid" ] || exit 1
tests/vma/vmad_test --gtest_filter='Resets.*'
