#include <nlohmann/json.hpp>

#include "tools/statistics_text.h"

namespace ringsock::tools {

namespace {

using nlohmann::ordered_json;
using runtime::CounterSums;
using runtime::ProcessSnapshot;
using runtime::SocketPath;
using runtime::SocketSnapshot;

ordered_json counters_json(const CounterSums& counters) {
  return {{"bytes_in", counters.bytes_in},   {"messages_in", counters.messages_in},
          {"bytes_out", counters.bytes_out}, {"messages_out", counters.messages_out},
          {"wakeups", counters.wakeups},     {"spins_paid", counters.spins_paid},
          {"errors", counters.errors}};
}

ordered_json address_json(const SocketAddress& address) {
  if (address.is_unspecified()) return nullptr;
  return address.to_string();
}

ordered_json socket_json(const SocketSnapshot& socket) {
  const auto& what = socket.description;
  ordered_json out;
  out["fd"] = what.descriptor < 0 ? ordered_json(nullptr) : ordered_json(what.descriptor);
  out["state"] = to_string(what.state);
  out["path"] = what.path == SocketPath::none ? ordered_json(nullptr) : ordered_json(to_string(what.path));
  out["local"] = address_json(what.local);
  out["peer"] = address_json(what.peer);
  out.update(counters_json(socket.counters));
  return out;
}

ordered_json connections_json(const ProcessSnapshot& process) {
  ordered_json out;
  for (const SocketPath path : {SocketPath::embedded, SocketPath::rdma, SocketPath::kernel}) {
    const auto index = static_cast<std::size_t>(path);
    out[to_string(path)] = {{"connected", process.connected[index]}, {"accepted", process.accepted[index]}};
  }
  ordered_json& reasons = out["kernel"]["reasons"] = ordered_json::object();
  for (std::size_t i = 0; i < process.kernel.size(); ++i) {
    if (process.kernel[i] != 0) reasons[to_string(static_cast<runtime::KernelReason>(i))] = process.kernel[i];
  }
  return out;
}

ordered_json process_json(const ProcessSnapshot& process) {
  ordered_json out;
  out["pid"] = process.pid;
  out["program"] = process.program;
  out["started"] = static_cast<double>(process.started_ns) / 1e9;
  out["connections"] = connections_json(process);
  ordered_json& refused = out["refused"] = ordered_json::object();
  for (std::size_t i = 0; i < process.refused.size(); ++i) {
    if (process.refused[i] != 0) refused[to_string(static_cast<Refusal>(i))] = process.refused[i];
  }
  out["sockets"] = ordered_json::array();
  for (const SocketSnapshot& socket : process.sockets) out["sockets"].push_back(socket_json(socket));
  out["others"] = counters_json(process.others);
  out["total"] = counters_json(process.total);
  return out;
}

ordered_json flow_json(const runtime::VmaFlow& flow) {
  return {{"messages", flow.packets}, {"bytes", flow.bytes}, {"eagains", flow.eagains}, {"errors", flow.errors}};
}

ordered_json socket_json(const runtime::VmaSocketSnapshot& socket) {
  ordered_json out;
  out["fd"] = socket.fd;
  out["path"] = socket.is_offloaded ? "ring" : "kernel";
  out["local"] = address_json(socket.local);
  out["peer"] = address_json(socket.peer);
  out["in"] = {{"ring", flow_json(socket.rx)}, {"kernel", flow_json(socket.rx_os)}};
  out["out"] = {{"ring", flow_json(socket.tx)}, {"kernel", flow_json(socket.tx_os)}};
  out["dropped"] = socket.ready_packets_dropped;
  return out;
}

ordered_json process_json(const runtime::VmaSnapshot& process) {
  ordered_json out;
  out["pid"] = process.pid;
  out["program"] = process.program;
  out["started"] = static_cast<double>(process.started_ns) / 1e9;
  out["rings"] = process.rings.size();
  out["sockets"] = ordered_json::array();
  for (const auto& socket : process.sockets) out["sockets"].push_back(socket_json(socket));
  return out;
}

}  // namespace

std::string statistics_json(const Users& users, int indent) {
  ordered_json out;
  out["processes"] = ordered_json::array();
  for (const ProcessSnapshot& process : users.processes) out["processes"].push_back(process_json(process));
  out["libvma"] = ordered_json::array();
  for (const runtime::VmaSnapshot& process : users.vma) out["libvma"].push_back(process_json(process));
  return out.dump(indent) + "\n";
}

}  // namespace ringsock::tools
