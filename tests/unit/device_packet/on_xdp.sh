#!/bin/sh
# The same tests, over AF_XDP rings.
RINGSOCK_TEST_RING=xdp exec tests/unit/device_packet/device_packet_test "$@"
