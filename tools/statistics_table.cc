#include <algorithm>
#include <array>
#include <cstdio>

#include "tools/statistics_text.h"

namespace ringsock::tools {

namespace {

using runtime::CounterSums;
using runtime::ProcessSnapshot;
using runtime::SocketPath;
using runtime::SocketSnapshot;

constexpr std::size_t kColumns = 12;
using Line = std::array<std::string, kColumns>;
const Line kHead{"fd",      "state",     "path",     "local",    "peer",  "bytes in",
                 "msgs in", "bytes out", "msgs out", "wake-ups", "spins", "errors"};
/// Returns whether the column has words, which are aligned to the left.
constexpr bool is_text(std::size_t column) { return column >= 1 && column <= 4; }

Line line_of(std::string fd, std::string state, const CounterSums& counters) {
  const auto number = [](std::uint64_t value) { return std::to_string(value); };
  return {std::move(fd),
          std::move(state),
          "",
          "",
          "",
          number(counters.bytes_in),
          number(counters.messages_in),
          number(counters.bytes_out),
          number(counters.messages_out),
          number(counters.wakeups),
          number(counters.spins_paid),
          number(counters.errors)};
}

std::string address_text(const SocketAddress& address) {
  return address.is_unspecified() || (address.is_wildcard() && address.port() == 0) ? "-" : address.to_string();
}

Line line_of(const SocketSnapshot& socket) {
  const auto& what = socket.description;
  Line line =
      line_of(what.descriptor < 0 ? "-" : std::to_string(what.descriptor), to_string(what.state), socket.counters);
  line[2] = to_string(what.path);
  line[3] = address_text(what.local);
  line[4] = address_text(what.peer);
  return line;
}

bool is_empty(const CounterSums& counters) {
  return (counters.bytes_in | counters.bytes_out | counters.messages_in | counters.messages_out | counters.wakeups |
          counters.spins_paid | counters.errors) == 0;
}

void append_padded(std::string& out, const std::string& text, std::size_t width, bool left) {
  const std::string space(width - std::min(width, text.size()), ' ');
  out += left ? text + space : space + text;
}

std::string aligned(const std::vector<Line>& lines) {
  std::array<std::size_t, kColumns> widths{};
  for (const Line& line : lines) {
    for (std::size_t i = 0; i < kColumns; ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string out;
  for (const Line& line : lines) {
    for (std::size_t i = 0; i < kColumns; ++i) {
      out += "  ";
      append_padded(out, line[i], widths[i], is_text(i));
    }
    out += '\n';
  }
  return out;
}

std::uint64_t both(const ProcessSnapshot& process, SocketPath path) {
  const auto index = static_cast<std::size_t>(path);
  return process.connected[index] + process.accepted[index];
}

std::string kernel_reasons(const ProcessSnapshot& process) {
  std::string out;
  const auto add = [&out](std::uint64_t count, const char* word) {
    if (count != 0) out += (out.empty() ? " (" : ", ") + std::to_string(count) + " " + word;
  };
  for (std::size_t i = 0; i < process.kernel.size(); ++i)
    add(process.kernel[i], to_string(static_cast<runtime::KernelReason>(i)));
  add(process.accepted[static_cast<std::size_t>(SocketPath::kernel)], "accepted");
  return out.empty() ? out : out + ")";
}

std::string refusals(const ProcessSnapshot& process) {
  std::string out;
  for (std::size_t i = 0; i < process.refused.size(); ++i) {
    if (process.refused[i] == 0) continue;
    out += (out.empty() ? ", refused (" : ", ") + std::to_string(process.refused[i]) + " " +
           to_string(static_cast<Refusal>(i));
  }
  return out.empty() ? out : out + ")";
}

std::string head_of(const ProcessSnapshot& process) {
  const std::uint64_t embedded = both(process, SocketPath::embedded), rdma = both(process, SocketPath::rdma);
  const std::uint64_t accepted = process.accepted[static_cast<std::size_t>(SocketPath::embedded)] +
                                 process.accepted[static_cast<std::size_t>(SocketPath::rdma)];
  return process.program + " [" + std::to_string(process.pid) + "]: " + std::to_string(embedded + rdma) +
         " connections by ring (" + std::to_string(embedded) + " embedded, " + std::to_string(rdma) + " rdma, " +
         std::to_string(accepted) + " accepted), " + std::to_string(both(process, SocketPath::kernel)) +
         " by kernel TCP" + kernel_reasons(process) + refusals(process) + "\n";
}

// -- processes with libvma

CounterSums sums_of(const runtime::VmaSocketSnapshot& socket) {
  CounterSums out;
  out.bytes_in = socket.rx.bytes + socket.rx_os.bytes;
  out.messages_in = socket.rx.packets + socket.rx_os.packets;
  out.bytes_out = socket.tx.bytes + socket.tx_os.bytes;
  out.messages_out = socket.tx.packets + socket.tx_os.packets;
  out.wakeups = socket.poll_misses;
  out.spins_paid = socket.poll_hits;
  out.errors = socket.rx.errors + socket.rx_os.errors + socket.tx.errors + socket.tx_os.errors;
  return out;
}

CounterSums sums_of(const runtime::VmaSnapshot& process) {
  CounterSums out;
  for (const auto& socket : process.sockets) {
    const CounterSums one = sums_of(socket);
    out.bytes_in += one.bytes_in;
    out.messages_in += one.messages_in;
    out.bytes_out += one.bytes_out;
    out.messages_out += one.messages_out;
    out.wakeups += one.wakeups;
  }
  return out;
}
const CounterSums& sums_of(const ProcessSnapshot& process) { return process.total; }

Line line_of(const runtime::VmaSocketSnapshot& socket) {
  const char* const state = !socket.peer.is_unspecified() ? "connected"
                            : socket.local.port() != 0    ? "bound"
                                                          : "created";
  Line line = line_of(std::to_string(socket.fd), state, sums_of(socket));
  line[2] = socket.is_offloaded ? "ring" : "kernel";
  line[3] = address_text(socket.local);
  line[4] = address_text(socket.peer);
  return line;
}

std::string head_of(const runtime::VmaSnapshot& process) {
  const auto by_rings = std::count_if(process.sockets.begin(), process.sockets.end(),
                                      [](const auto& socket) { return socket.is_offloaded; });
  const auto connections = std::ranges::count_if(process.sockets, &runtime::VmaSocketSnapshot::is_tcp);
  const auto datagrams = static_cast<std::ptrdiff_t>(process.sockets.size()) - connections;
  return process.program + " [" + std::to_string(process.pid) + "]: libvma, " + std::to_string(datagrams) +
         " UDP sockets (" + std::to_string(by_rings - connections) + " by Ethernet rings), " +
         (connections != 0 ? std::to_string(connections) + " TCP connections by Ethernet rings, " : "") +
         std::to_string(process.rings.size()) + " rings\n";
}

// -- rates

std::string rate_text(const std::string& program, std::uint64_t pid, const CounterSums& before, const CounterSums& now,
                      double seconds) {
  const auto rate = [seconds](std::uint64_t then, std::uint64_t later) {
    return later > then ? static_cast<double>(later - then) / seconds : 0.0;
  };
  std::array<char, 256> text;
  std::snprintf(text.data(), text.size(),
                "%s [%llu]: %.0f messages/s %.0f bytes/s in, %.0f messages/s %.0f bytes/s out, %.0f wake-ups/s\n",
                program.c_str(), static_cast<unsigned long long>(pid), rate(before.messages_in, now.messages_in),
                rate(before.bytes_in, now.bytes_in), rate(before.messages_out, now.messages_out),
                rate(before.bytes_out, now.bytes_out), rate(before.wakeups, now.wakeups));
  return text.data();
}

template <class Process>
std::string rates_of(const std::vector<Process>& before, const std::vector<Process>& now, double seconds) {
  std::string out;
  for (const Process& process : now) {
    const auto earlier = std::find_if(before.begin(), before.end(), [&](const Process& other) {
      return other.pid == process.pid && other.started_ns == process.started_ns;
    });
    if (earlier != before.end() && seconds > 0)
      out += rate_text(process.program, static_cast<std::uint64_t>(process.pid), sums_of(*earlier), sums_of(process),
                       seconds);
  }
  return out;
}

}  // namespace

std::string statistics_table(const Users& users) {
  std::string out;
  for (const ProcessSnapshot& process : users.processes) {
    std::vector<Line> lines{kHead};
    for (const SocketSnapshot& socket : process.sockets) lines.push_back(line_of(socket));
    if (!is_empty(process.others)) lines.push_back(line_of("-", "others", process.others));
    lines.push_back(line_of("", "all since start", process.total));
    if (!out.empty()) out += '\n';
    out += head_of(process) + aligned(lines);
  }
  for (const runtime::VmaSnapshot& process : users.vma) {
    std::vector<Line> lines{kHead};
    for (const auto& socket : process.sockets) lines.push_back(line_of(socket));
    if (!out.empty()) out += '\n';
    out += head_of(process) + aligned(lines);
  }
  return out;
}

std::string statistics_rates(const Users& before, const Users& now, double seconds) {
  return rates_of(before.processes, now.processes, seconds) + rates_of(before.vma, now.vma, seconds);
}

}  // namespace ringsock::tools
