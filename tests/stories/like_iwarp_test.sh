#!/bin/sh
# The stories on an embedded device that can do no more than an iWARP device: messages by SEND, four bytes inline.
export RINGSOCK_TEST_SOFT_LIKE=iwarp
./tests/stories/rsocket_test && exec ./tests/stories/hostile_peer_test
