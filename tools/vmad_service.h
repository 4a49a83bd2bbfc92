// vmad's knowledge of the processes with libvma: who there is, and what is left to do when one has died.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>

#include "libvmacompat/agent/messages.h"
#include "tools/tcp_reset.h"

namespace ringsock::tools {

/// What the service does in the system. A test replaces it.
class VmadSystem {
 public:
  VmadSystem(const VmadSystem&) = delete;
  VmadSystem& operator=(const VmadSystem&) = delete;
  /// Sends a datagram to the socket of a client. A failure is the client's.
  virtual void answer(pid_t pid, std::span<const std::byte> bytes) = 0;
  /// Has Service::has_ended() called when the process ends. Returns false when it has ended already, or cannot be
  /// watched.
  virtual bool watch(pid_t pid) = 0;
  virtual void unwatch(pid_t pid) = 0;
  /// Returns whether the process may make raw sockets, and so may send what we would send for it.
  virtual bool has_raw_sockets(pid_t pid) = 0;
  /// Resets a connection at its other end.
  virtual void reset(const TcpPair& pair) = 0;
  /// Removes the files of a process in the notify directory.
  virtual void remove_files(pid_t pid) = 0;
  virtual void log(int priority, const std::string& line) = 0;

 protected:
  VmadSystem() = default;
  ~VmadSystem() = default;
};

/// Reads the messages of processes. Whatever they contain costs bounded memory and harms nobody: a process speaks for
/// itself only, by the number that the kernel gives for the sender, and only one that may use raw sockets has
/// connections reset. Used by one thread.
class VmadService {
 public:
  static constexpr std::size_t kMostProcesses = 4096;
  static constexpr std::size_t kMostConnections = 65536;  ///< of all processes

  explicit VmadService(VmadSystem& system) : system_(system) {}

  /// A datagram has come.
  /// @param sender  the process that has sent it, as the kernel says; 0: in a namespace that is not ours
  void received(pid_t sender, std::span<const std::byte> datagram);
  /// A process that is watched has ended.
  void has_ended(pid_t pid);

  [[nodiscard]] std::size_t processes() const { return processes_.size(); }
  [[nodiscard]] std::size_t connections() const { return connections_; }

 private:
  struct Process {
    bool has_raw_sockets = false;
    std::unordered_map<std::uint32_t, vma::agent::State> connections;
  };
  using Processes = std::unordered_map<pid_t, Process>;

  void handle(pid_t pid, const vma::agent::Init& init);
  void handle(pid_t pid, const vma::agent::State& state);
  void handle(pid_t pid, const vma::agent::Exit& exit);
  void handle(pid_t pid, const vma::agent::Flow& flow);
  void forget(Processes::iterator process);
  void reset_connections(const Process& process);

  VmadSystem& system_;
  Processes processes_;
  std::size_t connections_ = 0;
};

}  // namespace ringsock::tools
