#!/bin/bash
# What variables of VMA do: environment_test in several rounds, each with its variables.
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
export TWO_HOSTS_PRELOAD=$PWD/.libs/libvma.so VMA_STATS_SHMEM_DIR=$place VMA_LOG_FILE=$place/log
here=$(dirname "$0")
round() { # STORIES VARIABLE=VALUE...
  local stories=$1
  shift
  # SIGINT: shells have programs in the background ignore it.
  env --default-signal=INT "$@" "$here/two_hosts.sh" tests/vma/environment_test --gtest_filter="$stories.*" || exit
}
round Start VMA_BF=0 VMA_FORK=0 VMA_UDP_3T_RULES=0 VMA_TCP_NODELAY=1 VMA_RX_POLL=1000
round ExceptionIsAnError VMA_EXCEPTION_HANDLING=2
round ExceptionIsLogged VMA_EXCEPTION_HANDLING=1
round ExceptionAborts VMA_EXCEPTION_HANDLING=3
round Interrupt VMA_HANDLE_SIGINTR=1
round Fault VMA_HANDLE_SIGSEGV=1
round Threads VMA_INTERNAL_THREAD_AFFINITY=0x1 VMA_CPU_USAGE_STATS=1 VMA_SELECT_POLL=-1
round Polling VMA_RX_POLL_INIT=0 VMA_RX_POLL_YIELD=8 VMA_SELECT_POLL_OS_RATIO=0 VMA_SELECT_SKIP_OS=3 \
  VMA_RX_CQ_DRAIN_RATE_NSEC=1 VMA_THREAD_MODE=3 VMA_CQ_AIM_INTERVAL_MSEC=10 VMA_TRIGGER_DUMMY_SEND_GETSOCKNAME=1
round Buffers VMA_MTU=600 VMA_RX_PREFETCH_BYTES=128 VMA_BUFFER_BATCHING_MODE=0 VMA_CQ_MODERATION_PERIOD_USEC=30
