// Buffers mapped for direct placement: the bookkeeping of riomap() and riounmap().
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/result.h"
#include "core/verbs/handles.h"
#include "librsocket/connection.h"

namespace ringsock::rs {

/// The application buffers that one socket has mapped (fact sheet 2.8). The owner serialises the calls.
class IoMap {
 public:
  explicit IoMap(Connection& connection) : connection_(connection) {}

  /// Registers [data, data + length). With `for_peer` it takes a slot of the peer's table and tells the peer. With
  /// `offset` -1 the address is the offset. Returns the offset.
  /// Errors: ENOMEM no slot; EAGAIN no control slot now; those of registration.
  Result<off_t> map(void* data, std::size_t length, bool for_peer, off_t offset);
  /// Unmaps a buffer, given its exact address and length. Tells the peer, so that later writes find no buffer. Errors:
  /// EINVAL; EAGAIN.
  Status unmap(void* data, std::size_t length);

 private:
  struct Mapping {
    void* data;
    std::size_t length;
    bool for_peer;
    std::uint32_t slot;  ///< index in the peer's table, if for_peer
    verbs::Mr registration;
  };
  [[nodiscard]] Result<std::uint32_t> free_slot() const;

  Connection& connection_;
  std::vector<Mapping> mappings_;
};

}  // namespace ringsock::rs
