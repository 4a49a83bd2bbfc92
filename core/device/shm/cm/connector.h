// The active side's search for a listener.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/device/shm/names/port_name.h"
#include "core/device/shm/names/port_owner.h"

namespace ringsock::soft {

/// The waiting times of a connecting id.
struct ConnectTimes {
  Nanos total{60'000'000'000};      ///< from connect() to `unreachable`
  Nanos first_retry{200'000};       ///< the listener's backlog was full: try again after this time, doubling ...
  Nanos longest_retry{50'000'000};  ///< ... up to this
};

/// Finds the process that listens for a destination: first under the exact address, then under the wildcards that cover
/// it. Skips a name whose holder does not own the kernel's port.
class Connector {
 public:
  struct Connected {
    UniqueFd socket;
    PeerIdentity peer;
    bool is_lone = false;  ///< nobody shares the listener's binding
  };

  /// @param socket  carries the connecting id's own name (PortReservation::take_named_socket()).
  Connector(verbs::PortSpace space, const SocketAddress& destination, UniqueFd socket, ConnectTimes times, Nanos now,
            Unproven unproven = Unproven::accept);

  /// Starts the time-outs anew.
  void start(Nanos now);
  /// Makes one round of attempts. Never blocks. Does not wait for the backlog of a name whose owner does not own the
  /// port. Errors: EAGAIN the listener's backlog is full: call again at retry_at(). ETIMEDOUT it stayed full.
  /// ECONNREFUSED no socket listens, or none of the port's owner. EMFILE, ENOMEM and the like.
  Result<Connected> attempt(Nanos now);
  [[nodiscard]] Nanos retry_at() const { return retry_at_; }
  [[nodiscard]] Nanos deadline() const { return deadline_; }
  /// Returns whether the backlog of an impostor was full, which takes a dump to find out.
  [[nodiscard]] bool met_full_impostor() const { return !impostors_.empty(); }
  /// Returns whether this process has connected to `destination` within the last milliseconds. Makes no system call.
  [[nodiscard]] static bool has_lately_reached(verbs::PortSpace space, const SocketAddress& destination);
  /// Returns the process that listened there, alone, when this process connected within the last milliseconds. Makes no
  /// system call. Another process may listen now.
  [[nodiscard]] std::optional<PeerIdentity> listener_lately_reached() const;

 private:
  Status need_socket();
  void ask_for_owner();
  void ask_kernel(int socket);
  bool may_serve(const PeerIdentity& peer, int socket);
  bool is_worth_waiting(const std::string& name);
  bool may_be_the_ports(const std::string& name);
  Result<Connected> try_binding(const PortBinding& binding);
  Result<Connected> try_name(const std::string& name);

  PortBinding destination_;
  UniqueFd socket_;
  std::vector<PortBinding> bindings_;
  ConnectTimes times_;
  Nanos deadline_{};
  Nanos retry_at_{};
  Nanos interval_{};
  Unproven unproven_;
  Result<uid_t> port_owner_ = Error{EOPNOTSUPP, "connect: not asked"};  ///< according to the kernel
  bool is_fresh_ = false;                                               ///< port_owner_ was asked in this attempt
  std::string owner_;                                                   ///< a name whose owner may be waited for
  std::vector<std::string> impostors_;                                  ///< names whose owners may not
};

}  // namespace ringsock::soft
