// The active side's search for a listener.
#pragma once

#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/device/soft/cm/port_name.h"
#include "core/device/soft/cm/port_owner.h"

namespace ringsock::soft {

/// How long a connecting id waits.
struct ConnectTimes {
  Nanos total{60'000'000'000};      ///< from connect() to `unreachable`
  Nanos first_retry{200'000};       ///< the listener's backlog was full: try again after this time, doubling ...
  Nanos longest_retry{50'000'000};  ///< ... up to this
};

/// Finds the process that listens for a destination: first the exact address, then the wildcards that cover it. A name
/// that somebody holds who does not own the kernel's port is passed over.
class Connector {
 public:
  struct Connected {
    UniqueFd socket;
    PeerIdentity peer;
  };

  /// @param socket  carries the connecting id's own name (PortReservation::take_named_socket()).
  Connector(verbs::PortSpace space, const SocketAddress& destination, UniqueFd socket, ConnectTimes times, Nanos now,
            Unproven unproven = Unproven::accept);

  /// Time begins anew.
  void start(Nanos now);
  /// One round of attempts. Never blocks. Nobody waits for the backlog of a name whose owner does not own the port.
  /// Errors: EAGAIN the listener's backlog is full: call again at retry_at(). ETIMEDOUT it stayed full. ECONNREFUSED
  /// nobody listens, or nobody whom the port belongs to. EMFILE, ENOMEM and the like.
  Result<Connected> attempt(Nanos now);
  [[nodiscard]] Nanos retry_at() const { return retry_at_; }
  [[nodiscard]] Nanos deadline() const { return deadline_; }
  /// An impostor's backlog was full, which takes a dump to find out.
  [[nodiscard]] bool met_full_impostor() const { return !impostors_.empty(); }

 private:
  Status ask_for_owner();
  bool is_worth_waiting(const std::string& name);
  [[nodiscard]] bool may_be_the_ports(const std::string& name) const;
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
  Result<uid_t> port_owner_ = Error{EOPNOTSUPP, "connect: not asked"};  ///< the kernel's word, of this attempt
  std::string owner_;                                                   ///< a name whose owner may be waited for
  std::vector<std::string> impostors_;                                  ///< names whose owners may not
};

}  // namespace ringsock::soft
