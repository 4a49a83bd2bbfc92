// SO_VMA_USER_DATA: the number by which a program that polls a ring knows a socket.
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "core/base/result.h"
#include "core/base/user_memory.h"

namespace ringsock::vma {

/// Threads: any.
class UserData {
 public:
  /// Returns the number: the descriptor unless the program has set another one.
  [[nodiscard]] std::uint64_t of(int fd) const noexcept {
    return is_set_.load(std::memory_order_acquire) ? value_.load(std::memory_order_relaxed)
                                                   : static_cast<std::uint64_t>(fd);
  }
  /// setsockopt(2) and getsockopt(2). Errors: EINVAL wrong length; EFAULT.
  Status set_option(const void* value, socklen_t length) {
    std::uint64_t data = 0;
    static_assert(sizeof data == sizeof(void*));
    if (length != sizeof data || value == nullptr) return Error{EINVAL, "SO_VMA_USER_DATA: length"};
    if (!is_readable(value, sizeof data)) return Error{EFAULT, "SO_VMA_USER_DATA"};
    std::memcpy(&data, value, sizeof data);
    value_.store(data, std::memory_order_relaxed);
    is_set_.store(true, std::memory_order_release);
    return ok();
  }
  Status get_option(void* value, socklen_t* length, int fd) const {
    const std::uint64_t data = of(fd);
    if (*length < sizeof data) return Error{EINVAL, "SO_VMA_USER_DATA: length"};
    if (!is_writable(value, sizeof data)) return Error{EFAULT, "SO_VMA_USER_DATA"};
    std::memcpy(value, &data, sizeof data);
    *length = sizeof data;
    return ok();
  }

 private:
  std::atomic<bool> is_set_{false};
  std::atomic<std::uint64_t> value_{0};
};

}  // namespace ringsock::vma
