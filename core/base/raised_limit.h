// RLIMIT_NOFILE, raised for a moment.
#pragma once

#include <sys/resource.h>

namespace ringsock {

/// Raises the soft limit of RLIMIT_NOFILE to the hard limit as long as it lives, so that the library's descriptors can
/// have numbers that the program cannot get. False, with errno unchanged, when the soft limit is the hard limit or a
/// seccomp filter forbids the change. Keep it for a few system calls only: meanwhile other threads may get numbers
/// above the limit. One thread at a time; fork(2) waits. A thread that has one may make another.
class RaisedLimit {
 public:
  RaisedLimit();
  RaisedLimit(const RaisedLimit&) = delete;
  RaisedLimit& operator=(const RaisedLimit&) = delete;
  ~RaisedLimit();
  explicit operator bool() const { return is_raised_; }

 private:
  rlimit before_{};
  bool is_inner_ = false;
  bool is_raised_ = false;
};

}  // namespace ringsock
