// Values of socket options, as setsockopt(2) and getsockopt(2) pass them.
#pragma once

#include <sys/socket.h>

#include <cstddef>

#include "core/base/clock.h"
#include "core/base/result.h"

namespace ringsock::rs {

/// The options of the level SOL_RDMA. <rdma/rsocket.h> also defines these, but is for applications.
enum RdmaOption { kRdmaSqSize, kRdmaRqSize, kRdmaInline, kRdmaIomapSize, kRdmaRoute };
/// The bounds of the sizes of queues.
inline constexpr int kMinQueue = 16;
inline constexpr int kMaxQueue = 65534;

/// Reads an int as setsockopt(2) does. Errors: EINVAL too short, EFAULT no value.
Result<int> read_int(const void* value, socklen_t length);
/// Writes at most *length bytes and stores their number in *length. No bytes can be written anywhere. Errors: EFAULT,
/// EINVAL a negative length.
Status write_value(void* value, socklen_t* length, const void* from, std::size_t size);
inline Status write_int(void* value, socklen_t* length, int from) {
  return write_value(value, length, &from, sizeof from);
}
/// Returns the usual number of an option of the socket level that has two.
int as_first_number(int name);
/// Reads SO_RCVTIMEO and SO_SNDTIMEO, where zero means for ever. Error: EDOM, as in socket(7), for invalid
/// microseconds.
Result<Nanos> read_timeout(const void* value, socklen_t length);
Status write_timeout(void* value, socklen_t* length, Nanos timeout);

}  // namespace ringsock::rs
