#!/bin/sh
exec "$(dirname "$0")/two_hosts.sh" tests/vma/udp_test "$@"
