// What the processes that have inherited a socket over fork(2) know of each other.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>

namespace ringsock::rs {

/// In memory that all of them share. A process that is killed does not count itself out, so `holders` may be too high,
/// never too low: who relies on it must be content with waiting for the kernel to close the last descriptor.
struct FamilyRecord {
  std::atomic<std::int32_t> holders;  ///< processes that have the socket open
  std::atomic<pid_t> user;            ///< who moves bytes since the last fork; 0: nobody has so far
  std::atomic<bool> child_listens;    ///< of a listener that only the parent has whole: a child uses its copy
};

/// A record for one socket, made before the fork that makes it needed. Records lie many to a page; the page goes, in
/// this process, with the last of them. Errors: nullptr, no memory. Threads: only the forking one.
std::shared_ptr<FamilyRecord> make_family_record();

/// This process is about to end: it holds no socket any more, as far as the others are concerned. For signal handlers,
/// too.
void leave_families() noexcept;
/// It goes on, after all.
void rejoin_families() noexcept;

}  // namespace ringsock::rs
