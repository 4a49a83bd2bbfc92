#include "librsocket/rsocket_library.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string>

#include "core/base/log.h"
#include "core/config/vma_log_level.h"
#include "core/runtime/fd_table.h"
#include "core/statistics/statistics.h"
#include "core/transports/rules.h"
#include "librsocket/stream_api.h"
#include "librsocket/stream_socket.h"

namespace ringsock::rs {

namespace {

LogLevel level_of(int vmas) {
  using config::VmaLogLevel;
  if (vmas <= static_cast<int>(VmaLogLevel::error)) return LogLevel::error;
  if (vmas <= static_cast<int>(VmaLogLevel::warning)) return LogLevel::warn;
  return vmas < static_cast<int>(VmaLogLevel::debug) ? LogLevel::info : LogLevel::debug;
}

std::string name_of(const Result<SocketAddress>& name) { return name ? name->to_string() : std::string("-"); }

/// One line without a newline.
std::string line_of(int fd, runtime::Endpoint& endpoint, const runtime::SocketStatistics& statistics) {
  const runtime::CounterSums sums = statistics.sums();
  const auto number = [](std::uint64_t value) { return std::to_string(value); };
  std::string out = "descriptor " + std::to_string(fd) + ": " + (endpoint.is_datagram() ? "udp " : "tcp ") +
                    name_of(endpoint.local_name()) + " to " + name_of(endpoint.peer_name()) + ": received " +
                    number(sums.bytes_in) + " bytes in " + number(sums.messages_in) + " calls, sent " +
                    number(sums.bytes_out) + " bytes in " + number(sums.messages_out) + " calls, " +
                    number(sums.wakeups) + " wakeups, " + number(sums.errors) + " errors";
  StreamSocket* const stream = find_stream(endpoint);
  if (stream != nullptr && stream->core().api() != nullptr)
    out += ", " + number(stream->core().api()->rehearsals()) + " dummy messages";
  return out;
}

/// Returns the number that a variable has, 0 without one. What is no number is reported.
int number_in_environment(const char* variable) {
  const char* const text = ::secure_getenv(variable);
  if (text == nullptr) return 0;
  int number = 0;
  const char* const end = text + std::strlen(text);
  const auto [rest, error] = std::from_chars(text, end, number);
  if (error != std::errc() || rest != end) log_warn("%s: \"%s\" is no number; it has no effect", variable, text);
  return error == std::errc() && rest == end ? number : 0;
}

vma::ApiLibrary::RingSettings ring_settings_in_environment() {
  constexpr const char* kLogic = "VMA_RING_ALLOCATION_LOGIC_RX";
  const int logic = number_in_environment(kLogic), most = number_in_environment("VMA_RING_LIMIT_PER_INTERFACE");
  const auto known = static_cast<runtime::RingLogic>(logic);
  // The number of a ring comes by the option only.
  const bool is_known =
      runtime::is_ring_logic(static_cast<std::uint32_t>(logic)) && known != runtime::RingLogic::per_user_id;
  if (!is_known) log_warn("%s: %d is no logic; it has no effect", kLogic, logic);
  return {.logic = is_known ? known : runtime::RingLogic::per_interface,
          .most_rings = static_cast<std::uint32_t>(std::max(most, 0))};
}

}  // namespace

bool RsocketLibrary::has_events() const {
  static const bool are_wanted = number_in_environment("VMA_SOCKETXTREME") != 0;
  return are_wanted;
}

vma::ApiLibrary::RingSettings RsocketLibrary::ring_settings() const {
  static const RingSettings settings = ring_settings_in_environment();
  return settings;
}

void RsocketLibrary::warn(const char* text) const { log_warn("%s", text); }

Status RsocketLibrary::add_rule(const std::string& line) const { return transports::add_rule(line); }

Status RsocketLibrary::offload_thread(pthread_t thread, bool on) const {
  return transports::offload_thread(thread, on);
}

Status RsocketLibrary::dump_sockets(int fd, int level) const {
  struct Socket {
    int fd;
    runtime::Ref endpoint;
  };
  std::vector<Socket> sockets;
  bool is_any = false;
  runtime::fd_table().for_each([&](int number, runtime::Endpoint& endpoint) {
    if (endpoint.statistics() == nullptr) return;
    is_any = true;
    if (fd == 0 || fd == number) sockets.push_back({number, runtime::Ref::share(endpoint)});
  });
  if (!is_any) return Error{EINVAL, "dump_fd_stats: there are no sockets yet"};
  for (const Socket& one : sockets) {
    const std::string line = line_of(one.fd, *one.endpoint, *one.endpoint->statistics());
    log_line(level_of(level), "%s", line.c_str());
  }
  return ok();
}

}  // namespace ringsock::rs
