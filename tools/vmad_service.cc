#include "tools/vmad_service.h"

#include <syslog.h>

#include <variant>

namespace ringsock::tools {

namespace agent = vma::agent;

namespace {
std::string named(pid_t pid) { return "process " + std::to_string(pid); }
}  // namespace

void VmadService::received(pid_t sender, std::span<const std::byte> datagram) {
  const auto message = agent::parse(datagram);
  if (!message)
    return system_.log(
        LOG_DEBUG, named(sender) + ": " + message.error().where + " (" + std::to_string(datagram.size()) + " bytes)");
  if (sender <= 0 || message->pid != sender)
    return system_.log(LOG_NOTICE, named(sender) + " speaks for " + named(message->pid) + ": ignored");
  std::visit([&](const auto& body) { handle(sender, body); }, message->body);
}

void VmadService::handle(pid_t pid, const agent::Init& init) {
  auto known = processes_.find(pid);
  if (known != processes_.end()) {  // it has executed another program, or has not got the answer
    connections_ -= known->second.connections.size();
    known->second.connections.clear();
  } else {
    if (processes_.size() == kMostProcesses) return system_.log(LOG_WARNING, named(pid) + ": too many processes");
    if (!system_.watch(pid)) return system_.log(LOG_NOTICE, named(pid) + " cannot be watched");
    known = processes_.try_emplace(pid).first;
  }
  known->second.has_raw_sockets = system_.has_raw_sockets(pid);
  system_.log(LOG_DEBUG, named(pid) + " has begun");
  system_.answer(pid, agent::accept_init(pid, init.library_version).span());
}

void VmadService::handle(pid_t pid, const agent::State& state) {
  const auto process = processes_.find(pid);
  if (process == processes_.end()) return;
  auto& connections = process->second.connections;
  if (state.state == agent::State::kClosed) {
    connections_ -= connections.erase(state.id);
    return;
  }
  if (const auto known = connections.find(state.id); known != connections.end()) {
    known->second = state;
    return;
  }
  if (connections_ == kMostConnections) return system_.log(LOG_WARNING, named(pid) + ": too many connections");
  connections.emplace(state.id, state);
  ++connections_;
}

void VmadService::handle(pid_t pid, const agent::Exit& /*exit*/) {
  const auto process = processes_.find(pid);
  if (process == processes_.end()) return;
  system_.log(LOG_DEBUG, named(pid) + " ends");
  system_.unwatch(pid);
  forget(process);
}

/// Rules of traffic control are for rings over TAP interfaces, which libvma does not have here.
void VmadService::handle(pid_t pid, const agent::Flow& flow) {
  if (flow.wants_answer && processes_.contains(pid)) system_.answer(pid, agent::refuse_flow(pid).span());
}

void VmadService::has_ended(pid_t pid) {
  const auto process = processes_.find(pid);
  if (process == processes_.end()) return;
  system_.log(LOG_INFO, named(pid) + " has died with " + std::to_string(process->second.connections.size()) +
                            " TCP connections on rings");
  reset_connections(process->second);
  forget(process);
}

/// A process that may not use raw sockets has no TCP connections on rings, whatever it says.
void VmadService::reset_connections(const Process& process) {
  if (!process.has_raw_sockets) return;
  for (const auto& [id, state] : process.connections) {
    if (state.state != agent::State::kEstablished) continue;
    system_.reset({.source = state.source.s_addr,
                   .destination = state.destination.s_addr,
                   .source_port = state.source_port,
                   .destination_port = state.destination_port});
  }
}

void VmadService::forget(Processes::iterator process) {
  connections_ -= process->second.connections.size();
  system_.remove_files(process->first);
  processes_.erase(process);
}

}  // namespace ringsock::tools
