// What a datagram rsocket knows of the addresses it talks to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>

#include "core/base/clock.h"
#include "core/base/socket_address.h"
#include "core/verbs/handles.h"
#include "core/verbs/ud_extensions.h"
#include "core/wire/rs_datagram.h"

namespace ringsock::rs {

class Lane;

/// One address. The socket's lock guards it. Its lane lives longer.
struct Peer {
  Peer() = default;
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  ~Peer() { forget_path(); }

  SocketAddress address;       ///< not mapped
  SocketAddress local;         ///< ours towards it, not mapped, with our port
  wire::RsHeaderBytes header;  ///< of our datagrams to it: emit_rs_ud(local)
  Lane* lane = nullptr;
  verbs::Ah ah;                                 ///< made with the first datagram by the lane
  std::unique_ptr<verbs::UdPathSearch> search;  ///< for the address handle, while it goes on
  std::uint32_t qp_number = 0;
  wire::RsUdpNote note;                   ///< of the packet that told the number
  bool is_known = false;                  ///< qp_number is of a process that may exchange datagrams with us
  bool was_asked = false;                 ///< we have sent it a datagram by the kernel, so it may tell its number
  bool has_answered = false;              ///< it has told qp_number when asked, so it receives what goes to its address
  bool has_come_by_queue_pair = false;    ///< its last datagram came that way
  Nanos known_since{};                    ///< when it was last told or confirmed
  Nanos answered = Nanos::min();          ///< when it was last told our number
  Nanos ask_kernel_again = Nanos::min();  ///< not before: whose port it is
  Nanos search_again = Nanos::min();      ///< not before: for a path
  Nanos asked = Nanos::min();             ///< when its number was last asked for
  Nanos sent_by_lane = Nanos::min();      ///< when it last got a datagram that way

  /// How long a number is used that nothing has confirmed: then one datagram goes by the kernel, which asks anew.
  static constexpr Nanos kAge = std::chrono::seconds(30);
  /// The same for a ringsock on a real device, which answers questions, and whose end no device tells.
  static constexpr Nanos kAgeOfAsked = std::chrono::seconds(5);
  /// How long such a peer may be silent before it is asked.
  static constexpr Nanos kSilence = std::chrono::seconds(1);

  [[nodiscard]] bool answers_questions() const { return note.mtu != 0; }
  [[nodiscard]] bool is_usable(Nanos now) const {
    return is_known && now - known_since < (answers_questions() ? kAgeOfAsked : kAge);
  }
  /// Returns whether the peer is to be asked whether it still has the number.
  [[nodiscard]] bool is_question_due(Nanos now) const {
    return answers_questions() && now - known_since >= kSilence && (asked == Nanos::min() || now - asked >= kSilence);
  }
  void learn(std::uint32_t number, Nanos now, const wire::RsUdpNote& told = {}) {
    has_answered = has_answered && number == qp_number;
    qp_number = number;
    note = told;
    is_known = true;
    known_since = now;
  }
  /// Gives the address handle back.
  void forget_path();
};

/// The addresses used of late, at most kMost. A further one takes the place of the one that was not used for longest.
class Peers {
 public:
  static constexpr std::size_t kMost = 1024;

  /// Returns the peer, which counts as used now, or null. Valid until the next add().
  Peer* find(const SocketAddress& address);
  /// The same for an address without scope: the first that differs from it in the scope only.
  Peer* find_without_scope(const SocketAddress& address);
  /// Adds an address that find() has not found.
  Peer& add(const SocketAddress& address);
  void clear();
  [[nodiscard]] std::size_t size() const { return order_.size(); }

 private:
  struct Hash {
    std::size_t operator()(const SocketAddress& address) const noexcept;
  };
  std::list<Peer> order_;  ///< the last used first
  std::unordered_map<SocketAddress, std::list<Peer>::iterator, Hash> places_;
};

/// How often the kernel is asked whose a port is: strangers with many addresses must not keep this process busy.
class QuestionBudget {
 public:
  static constexpr unsigned kPerSecond = 128;
  /// Returns whether a question may be asked now.
  bool take(Nanos now);

 private:
  Nanos second_ = Nanos::min();  ///< when the current second began
  unsigned asked_ = 0;           ///< in it
};

}  // namespace ringsock::rs
