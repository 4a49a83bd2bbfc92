// The kernel descriptors by which the endpoints of an epoll set wake its threads.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <unordered_map>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/runtime/endpoint.h"

namespace ringsock::runtime {

/// An epoll file with the doorbells of endpoints, edge-triggered, and with a bell of its own. Several endpoints may
/// share a doorbell. Guarded by the set's lock, but for file() and ring_bell().
class Doorbells {
 public:
  /// Makes the epoll file, with the bell in it. Errors: EMFILE, ENFILE, ENOMEM.
  static Result<Doorbells> make();
  /// Makes them anew, in a forked child: in a shared epoll file one process would consume the doorbells of the other.
  Status renew();

  /// Returns the epoll file. The descriptor changes only in a forked child, before it can use the set.
  [[nodiscard]] int file() const { return file_.get(); }
  /// Wakes the threads that sleep on the file. Leaves errno as it is.
  void ring_bell() const;

  /// Registers a doorbell of `endpoint`.
  /// @param fd      becomes -1 when there is no memory to know it as a doorbell
  /// @param is_new  whether it is one member more that has it
  /// @return whether the kernel has it.
  bool add(int& fd, Endpoint& endpoint, bool is_new);
  /// Registers a doorbell that a set which is about to become a member has. Errors: those of epoll_ctl(2).
  [[nodiscard]] Status add_nested(int fd) const;
  /// Called when a member of `endpoint` does not have the doorbell any more. It is removed with the last one.
  /// @return whether others have it, and it rings for nobody: the caller calls ring_for() or remove().
  bool leave(int fd, Endpoint& endpoint);
  void ring_for(int fd, Endpoint& endpoint);
  void remove(int fd);

  /// Consumes the doorbells that rang, and calls visit(Endpoint&) for the owner of each; it may call leave().
  template <class Visit>
  void take(Visit visit) {
    std::array<epoll_event, 64> rung;
    int count = 0;
    do {
      count = ::epoll_wait(file_.get(), rung.data(), static_cast<int>(rung.size()), 0);
      for (int i = 0; i < count; ++i) {
        const auto known = known_.find(rung[static_cast<std::size_t>(i)].data.fd);
        if (known != known_.end()) visit(*known->second.owner);
      }
    } while (count == static_cast<int>(rung.size()));
  }

 private:
  /// The endpoint whose woken() is called when the doorbell rings, and the number of members that have it.
  struct Doorbell {
    Endpoint* owner = nullptr;
    unsigned users = 0;
  };
  using Known = std::unordered_map<int, Doorbell>;

  Doorbells(UniqueFd file, UniqueFd bell);

  UniqueFd file_;
  UniqueFd bell_;  ///< eventfd; never read: edge-triggered
  Known known_;
};

}  // namespace ringsock::runtime
