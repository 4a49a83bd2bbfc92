// The owner of a file's SIGIO and SIGURG.
#pragma once

#include <fcntl.h>

namespace ringsock::rs {

/// Copies F_SETOWN and F_SETSIG from one file to another that takes its descriptor number.
class SignalOwner {
 public:
  static SignalOwner of(int fd) {
    SignalOwner out;
    if (::fcntl(fd, F_GETOWN_EX, &out.owner_) != 0) out.owner_ = {};
    out.signal_ = ::fcntl(fd, F_GETSIG);
    return out;
  }
  void give_to(int fd) const {
    if (owner_.pid != 0) ::fcntl(fd, F_SETOWN_EX, &owner_);
    if (signal_ > 0) ::fcntl(fd, F_SETSIG, signal_);
  }

 private:
  f_owner_ex owner_{};
  int signal_ = 0;
};

}  // namespace ringsock::rs
