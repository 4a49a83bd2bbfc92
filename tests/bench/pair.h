// Two processes, a server and a client, fresh for each measurement.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/bench/calls.h"
#include "tests/support/child.h"

namespace ringsock::bench {

using Clock = std::chrono::steady_clock;

/// What is measured is a number in the unit of its row; nothing when a call failed (said on stderr).
using Figure = std::optional<double>;

/// One process of a measurement. The calls below end the process with a message when they fail, so bodies stay short.
struct Party {
  const Calls& calls;
  testing::Channel& parent;

  int listen_anywhere() const;  ///< 127.0.0.1, a free port; told to the parent, who tells the client
  int accept_one(int listener) const;
  /// `prepare` may set options that must precede the connection.
  int connect_to(std::uint16_t port, const std::function<void(int)>& prepare = {}) const;
  void send_all(int socket, const void* data, std::size_t length) const;
  /// False at the end of the stream.
  bool receive_all(int socket, void* data, std::size_t length) const;
  [[noreturn]] void fail(const char* call) const;
};

double seconds_since(Clock::time_point start);

/// Runs `server` on an accepted connection and `client` on a connected one, each in its own process; the client's
/// result.
Figure run_connected(const Calls& calls, const std::function<void(const Party&, int)>& server,
                     const std::function<double(const Party&, int)>& client);

/// The same with the bodies in charge of all sockets; `server` begins with listen_anywhere(), the client is handed that
/// port. The sum of what both answer.
Figure run_processes(const Calls& calls, const std::function<double(const Party&)>& server,
                     const std::function<double(const Party&, std::uint16_t)>& client);

/// `count` such pairs at the same time, started together; the sum over the clients.
Figure run_pairs_together(const Calls& calls, int count, const std::function<void(const Party&, int)>& server,
                          const std::function<double(const Party&, int)>& client);

}  // namespace ringsock::bench
