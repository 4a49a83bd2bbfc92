#!/bin/sh
# The stories on an embedded device that can do no more than a RoCE device: little inline data, a completion channel.
export RINGSOCK_TEST_SOFT_LIKE=roce
./tests/stories/rsocket_test && exec ./tests/stories/hostile_peer_test
