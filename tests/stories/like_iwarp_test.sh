#!/bin/sh
# The stories on an embedded device that can do no more than an iWARP device: messages by SEND, four bytes inline.
RINGSOCK_TEST_SOFT_LIKE=iwarp exec ./tests/stories/rsocket_test "$@"
