// udpong: a client and a server that exchange datagrams.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "tools/call_table.h"
#include "tools/udpong_message.h"

namespace ringsock::tools {

struct UdpongOptions {
  std::string server;     ///< empty: this is the server
  std::string bind_node;  ///< empty: any
  std::string port = "7174";
  int buffer_bytes = 1 << 19;
  bool custom = false;  ///< one test instead of the series
  std::uint32_t transfers = 1000;
  std::uint32_t transfer_bytes = 1000;
  bool kernel = false;
  bool async = false;
  bool blocking = false;
  bool echo = false;

  [[nodiscard]] bool is_client() const { return !server.empty(); }
};

/// One test: the client sends `transfers` messages, which the server counts or sends back.
struct UdpongTest {
  std::string name;
  std::size_t bytes;
  std::uint32_t transfers;
  bool echo;
};

/// Returns the tests that the options ask for.
std::vector<UdpongTest> udpong_tests(const UdpongOptions& options);
/// Prints the head of the table, and one line.
void print_udpong_header();
void print_udpong_result(const UdpongTest& test, std::uint64_t transfers, Nanos elapsed);

/// Opens a socket with the options, bound or connected. Errors: those of the calls.
Result<Socket> open_udpong_socket(const UdpongOptions& options);

class UdpongClient {
 public:
  UdpongClient(const UdpongOptions& options, Socket socket);
  /// Errors: ETIMEDOUT no server answers; those of the calls.
  Status log_in();
  /// Runs one test and prints its line.
  Status run(const UdpongTest& test);

 private:
  Status send(UdpongOp op, std::size_t bytes);
  Status await_room();
  Result<UdpongHeader> exchange(UdpongOp op, std::size_t bytes, int patience_ms, int attempts);
  Result<std::optional<UdpongHeader>> await_answer(UdpongOp op, int patience_ms);
  Status send_all(const UdpongTest& test);

  const UdpongOptions& options_;
  Socket socket_;
  std::array<std::byte, kMaxUdpongBytes> out_{};
  std::array<std::byte, kMaxUdpongBytes> in_{};
  std::uint8_t number_ = 0;
  std::uint8_t sequence_ = 0;
};

/// What the server knows of its clients, whose numbers are their places.
class UdpongClients {
 public:
  /// Changes `message` into the answer. Returns whether it is to be sent.
  bool serve(UdpongHeader& message, const sockaddr_storage& from, socklen_t length);
  /// Returns whether the last message was a login of a new client.
  [[nodiscard]] bool has_new_client() const { return has_new_client_; }

 private:
  struct Client {
    sockaddr_storage address{};
    socklen_t length = 0;
    std::uint32_t count = 0;
  };
  bool log_in(UdpongHeader& message, const sockaddr_storage& from, socklen_t length);
  [[nodiscard]] Client* find(const UdpongHeader& message, const sockaddr_storage& from, socklen_t length);

  std::array<Client, 256> clients_{};
  std::uint8_t next_ = 0;
  bool has_new_client_ = false;
};

/// Serves clients until a call fails.
Status serve_udpong(const UdpongOptions& options, const Socket& socket);

}  // namespace ringsock::tools
