#!/bin/sh
# A hostile peer of an embedded device that can do no more than others.
RINGSOCK_TEST_SOFT_LIKE=roce ./tests/stories/hostile_peer_test "$@" || exit
RINGSOCK_TEST_SOFT_LIKE=iwarp exec ./tests/stories/hostile_peer_test "$@"
