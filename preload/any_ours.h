// Finds endpoints among the descriptors of poll(2) and select(2).
#pragma once

#include <algorithm>
#include <climits>

#include "core/base/user_memory.h"
#include "preload/route.h"

namespace ringsock::preload {

/// Returns whether one of the entries is an endpoint. Also returns false when the entries cannot be read and written,
/// because the kernel then reports the error. A plain loop: std::any_of() is unrolled, which costs more than it saves
/// for the single descriptor that is most common.
[[gnu::always_inline]] inline bool any_ours(const pollfd* fds, nfds_t count) {
  if (count > INT_MAX || !are_writable(fds, count)) return false;
  for (const pollfd* const end = fds + count; fds != end; ++fds) {
    if (fd_table().holds(fds->fd)) return true;
  }
  return false;
}

inline bool any_ours(int nfds, const fd_set* readable, const fd_set* writable, const fd_set* exceptional) {
  nfds = std::min(nfds, fd_table().end());
  if (nfds <= 0) return false;
  const std::size_t bytes = static_cast<std::size_t>((nfds - 1) / NFDBITS + 1) * sizeof(fd_mask);
  for (const fd_set* set : {readable, writable, exceptional}) {
    if (set != nullptr && !is_writable(set, bytes)) return false;
  }
  for (const fd_set* set : {readable, writable, exceptional}) {
    if (set == nullptr) continue;
    const auto* words = reinterpret_cast<const fd_mask*>(set);
    for (int word = 0; word * NFDBITS < nfds; ++word) {
      for (auto bits = static_cast<unsigned long>(words[word]); bits != 0; bits &= bits - 1) {
        const int fd = word * NFDBITS + __builtin_ctzl(bits);
        if (fd < nfds && fd_table().holds(fd)) return true;
      }
    }
  }
  return false;
}

}  // namespace ringsock::preload
