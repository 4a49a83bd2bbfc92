#!/bin/sh
# The stories on an embedded device that can do no more than a RoCE device: little inline data, a completion channel.
RINGSOCK_TEST_SOFT_LIKE=roce exec ./tests/stories/rsocket_test "$@"
