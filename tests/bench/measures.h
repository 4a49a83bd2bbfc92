// What rsocket_bench measures; each function is one run of one measurement.
#pragma once

#include "tests/bench/pair.h"

namespace ringsock::bench {

/// How a ping-pong waits for its answer.
enum class Waiting { blocking, spinning };

Figure ping_pong_us(const Calls& calls, Waiting waiting);                 ///< 64 B, one way
Figure messages_per_second(const Calls& calls);                           ///< 64 B, one direction
Figure stream_gb_per_second(const Calls& calls);                          ///< 64 KiB messages, one direction
Figure zero_copy_gb_per_second();                                         ///< 64 KiB messages, recvfrom_zcopy()
Figure riowrite_gb_per_second(bool shared);                               ///< 64 KiB, into one mapped buffer
Figure connections_per_second(const Calls& calls);                        ///< connect, 1 B each way, close
Figure idle_memory_kib();                                                 ///< both ends of a connection together
Figure blocked_reader_cpu_percent(const Calls& calls);                    ///< of one CPU, over 1 s without traffic
Figure busy_pairs_round_trips_per_second(const Calls& calls, int pairs);  ///< on two CPUs, all pairs together

/// Round trip of 64 B on one connection while `idle` others of the same two processes stay open, us.
Figure round_trip_beside_idle_us(const Calls& calls, int idle);
/// The same when the server waits for all its connections with (r)epoll_wait.
Figure epoll_round_trip_beside_idle_us(const Calls& calls, int idle);
/// The same when the server waits for all its connections with (r)poll.
Figure poll_round_trip_beside_idle_us(const Calls& calls, int idle);

}  // namespace ringsock::bench
