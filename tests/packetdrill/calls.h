// The system calls of a script: makes them by packetdrill's table and compares what they give.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "tests/packetdrill/interface.h"
#include "tests/packetdrill/packet.h"
#include "tests/packetdrill/script.h"

namespace ringsock::packetdrill {

/// Threads: run() on one thread at a time; the other functions at any time.
class Calls {
 public:
  /// @param local, remote  what `...` stands for as an address
  Calls(packetdrill_interface& table, const Endpoint& local, const Endpoint& remote, bool v6_sockets)
      : table_(table), local_(local), remote_(remote), v6_(v6_sockets) {}

  /// Returns what was wrong; empty: nothing.
  std::string run(const CallSpec& call);
  /// The descriptor in the table's view of the connection that code is about; -1: none.
  [[nodiscard]] int subject() const;

 private:
  struct Result {
    std::int64_t value;
    std::string wrong;  ///< what the call gave beside its result
    bool new_descriptor = false;
  };
  using Handler = Result (Calls::*)(const CallSpec&);
  static const std::map<std::string, Handler>& handlers();

  [[nodiscard]] int fd(const CallSpec& call, std::size_t at = 0) const;
  [[nodiscard]] int live_fd(std::int64_t script) const;
  void learn(std::int64_t script, std::int64_t live);

  Result socket(const CallSpec& call);
  Result bind(const CallSpec& call);
  Result listen(const CallSpec& call);
  Result accept(const CallSpec& call);
  Result connect(const CallSpec& call);
  Result receive(const CallSpec& call);
  Result transmit(const CallSpec& call);
  Result receive_pieces(const CallSpec& call);
  Result transmit_pieces(const CallSpec& call);
  Result sendmsg(const CallSpec& call);
  Result recvmsg(const CallSpec& call);
  Result fcntl(const CallSpec& call);
  Result ioctl(const CallSpec& call);
  Result close(const CallSpec& call);
  Result shutdown(const CallSpec& call);
  Result getsockopt(const CallSpec& call);
  Result setsockopt(const CallSpec& call);
  Result poll(const CallSpec& call);
  Result epoll_create(const CallSpec& call);
  Result epoll_ctl(const CallSpec& call);
  Result epoll_wait(const CallSpec& call);
  Result pipe(const CallSpec& call);
  Result splice(const CallSpec& call);

  packetdrill_interface& table_;
  const Endpoint local_, remote_;
  const bool v6_;
  mutable std::mutex mutex_;
  std::map<std::int64_t, int> descriptors_;  ///< of the table, by the script's
  int subject_ = -1;
};

}  // namespace ringsock::packetdrill
