// From descriptor to endpoint: wait-free look-up for any descriptor number (liburcu, flavour bp).
#pragma once

#include <cstddef>

#include "core/base/result.h"
#include "core/runtime/endpoint.h"

namespace ringsock::runtime {

/// The process's descriptors that are ours.
/// find() costs a few nanoseconds: two dependent loads inside an RCU read-side section. insert() and remove() take a lock.
/// Close during use is safe: remove() waits for a grace period before it gives the table's reference away.
class FdTable {
 public:
  /// Inside an RCU read-side section: the endpoint stays alive until the Lookup is gone or released. Never sleep while
  /// holding one: pin() it first, which trades the section for a counted reference.
  class Lookup {
   public:
    explicit Lookup(const FdTable& table, int fd) noexcept;
    Lookup(const Lookup&) = delete;
    Lookup& operator=(const Lookup&) = delete;
    ~Lookup();
    explicit operator bool() const { return endpoint_ != nullptr; }
    Endpoint* operator->() const { return endpoint_; }
    Endpoint& operator*() const { return *endpoint_; }
    /// Ends the read-side section; the reference lives as long as this object.
    void pin();

   private:
    Endpoint* endpoint_;
    bool pinned_ = false;
  };

  [[nodiscard]] Lookup find(int fd) const noexcept { return Lookup(*this, fd); }
  /// A counted reference, empty when `fd` is not ours.
  [[nodiscard]] Ref get(int fd) const noexcept;
  /// Takes over `endpoint`. Errors: EBADF negative, ENOMEM. A stale entry (closed behind our back with the raw system
  /// call, number used again by the kernel) is removed first, as remove() does.
  Status insert(int fd, Ref endpoint);
  /// The table's reference, after a grace period; empty when `fd` is not ours. Does not close(2) the number and does not
  /// call closed().
  Ref remove(int fd);
  /// Visits every entry with its number, under the lock. For fork handlers and statistics.
  template <class Visit>
  void for_each(Visit visit);

 private:
  // (the implementer lays out the two-level table)
};

/// The one table of the process, shared by all libraries on this core.
FdTable& fd_table();

}  // namespace ringsock::runtime
