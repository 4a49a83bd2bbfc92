// The common part of rstream and riostream: connecting, moving bytes in the chosen mode, the series of tests and their
// table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "tools/call_table.h"
#include "tools/stream_arguments.h"

namespace ringsock::tools {

/// The goal of a connection's tuning, which determines its inline size.
enum class Optimization { none, latency, bandwidth };

struct StreamTest {
  std::string name;
  std::size_t bytes;
  std::uint32_t transfers;
  std::uint32_t iterations;
};

/// One end of the test, over one connection after the other.
class StreamSession {
 public:
  explicit StreamSession(const StreamOptions& options);

  [[nodiscard]] const StreamOptions& options() const { return options_; }
  [[nodiscard]] const SocketCalls& calls() const { return calls_; }
  [[nodiscard]] int fd() const { return connection_.fd(); }
  [[nodiscard]] const Socket& connection() const { return connection_; }
  /// Returns the flags of send, recv and riowrite calls in the chosen mode.
  [[nodiscard]] int call_flags() const;

  /// Server: binds and listens. riostream needs room for `iomaps` mappings on every connection.
  Status listen(int iomaps);
  /// Client: connects. Server: waits for the next client.
  Status open_connection(Optimization optimization, int iomaps);
  void close_connection();
  /// Server with -T fork: accept_one() accepts a connection, adopt() makes it the session's in the child.
  Result<Socket> accept_one() { return accept_socket(listener_, nullptr); }
  Status adopt(Socket connection);

  /// Sends all of `data`. In nonblocking mode it spins, in async mode it polls first.
  Status send_all(std::span<const std::byte> data);
  /// Receives all of `data`. Error: ECONNRESET when the peer has closed.
  Status receive_all(std::span<std::byte> data);
  /// With -T async: waits for `event`.
  Status wait_if_async(short event);

 private:
  Status configure(const Socket& socket, Optimization optimization, int iomaps);
  Status set_keepalive(const Socket& socket);
  Status set_inline(const Socket& socket, Optimization optimization);
  Status connect(Optimization optimization, int iomaps);

  const StreamOptions options_;
  const SocketCalls& calls_;
  Socket listener_;
  Socket connection_;
};

/// Does one test on an open connection: synchronises with the peer, then transfers.
class StreamTransfer {
 public:
  virtual ~StreamTransfer() = default;
  /// Returns the number of mappings that connections need room for.
  [[nodiscard]] virtual int iomaps() const { return 0; }
  /// Prepares `test` and synchronises with the peer, outside of the measured time.
  virtual Status prepare(const StreamTest& test) = 0;
  virtual Status run(const StreamTest& test) = 0;
  virtual void finish() {}
};

/// Return the tests of a series, named 64_lat, 64k_bw ...
std::vector<StreamTest> latency_tests(bool all_sizes);
std::vector<StreamTest> bandwidth_tests(bool all_sizes);

/// Runs the selected tests and prints the table. @return exit status
int run_stream_tests(const char* tool, StreamSession& session, StreamTransfer& transfer);

/// The main() of a tool. `Transfer`, its kind of transfer, is constructed from a StreamSession&.
template <class Transfer>
int stream_tool_main(const StreamTool& tool, int argc, char** argv) {
  const ParsedOptions parsed = parse_stream_options(tool, argc, argv);
  if (!parsed.options) return parsed.exit_status;
  StreamSession session(*parsed.options);
  Transfer transfer(session);
  return run_stream_tests(tool.name, session, transfer);
}

/// Prints a failure: "rstream: connect: Connection refused".
void print_failure(const char* tool, Error error);

}  // namespace ringsock::tools
