// vmad's descriptors: its socket, its clients' processes, and the raw sockets for resets.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <unordered_map>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "tools/tcp_reset.h"
#include "tools/vmad_files.h"
#include "tools/vmad_options.h"
#include "tools/vmad_service.h"

namespace ringsock::tools {

class VmadLoop final : public VmadSystem {
 public:
  /// Opens the notify directory and the socket. Errors: those of VmadFiles::open(), socket(2) and bind(2).
  static Result<std::unique_ptr<VmadLoop>> open(const VmadOptions& options);
  ~VmadLoop();

  /// Serves until SIGTERM or SIGINT, which must be blocked.
  Status run();

  void answer(pid_t pid, std::span<const std::byte> bytes) override;
  bool watch(pid_t pid) override;
  void unwatch(pid_t pid) override;
  bool has_raw_sockets(pid_t pid) override;
  void reset(const TcpPair& pair) override;
  void remove_files(pid_t pid) override;
  void log(int priority, const std::string& line) override;

 private:
  VmadLoop(const VmadOptions& options, VmadFiles files);
  Status open_socket();
  void open_raw_sockets();
  Status enter(int fd, std::uint64_t what);
  void serve(std::uint64_t what);
  void receive_message();
  void receive_segments();
  void remove_stale_files();
  [[nodiscard]] int time_left() const;

  const VmadOptions options_;
  VmadFiles files_;
  UniqueFd events_, signals_, socket_, raw_out_, raw_in_;
  std::unordered_map<pid_t, UniqueFd> watched_;  ///< pidfd_open(2)
  TcpResets resets_;
  VmadService service_{*this};
  bool ends_ = false;
};

}  // namespace ringsock::tools
