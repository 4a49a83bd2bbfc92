#include "librsocket/option_values.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace ringsock::rs {

Result<int> read_int(const void* value, socklen_t length) {
  if (value == nullptr) return Error{EFAULT, "option: no value"};
  if (length < sizeof(int)) return Error{EINVAL, "option: too short"};
  int out = 0;
  std::memcpy(&out, value, sizeof out);
  return out;
}

Status write_value(void* value, socklen_t* length, const void* from, std::size_t size) {
  if (length == nullptr || (value == nullptr && *length != 0)) return Error{EFAULT, "option: no room"};
  if (static_cast<int>(*length) < 0) return Error{EINVAL, "option: negative length"};
  *length = static_cast<socklen_t>(std::min<std::size_t>(*length, size));
  if (*length > 0) std::memcpy(value, from, *length);
  return ok();
}

int as_first_number(int name) {
  if constexpr (sizeof(time_t) == sizeof(long)) {  // otherwise their values differ, too
    if (name == SO_RCVTIMEO_NEW) return SO_RCVTIMEO;
    if (name == SO_SNDTIMEO_NEW) return SO_SNDTIMEO;
  }
  return name;
}

Result<Nanos> read_timeout(const void* value, socklen_t length) {
  if (value == nullptr) return Error{EFAULT, "option: no value"};
  if (length < sizeof(timeval)) return Error{EINVAL, "option: too short"};
  timeval time{};
  std::memcpy(&time, value, sizeof time);
  if (time.tv_usec < 0 || time.tv_usec >= 1'000'000) return Error{EDOM, "option: microseconds"};
  if (time.tv_sec < 0) return Nanos::zero();  // as Linux: no waiting
  if (time.tv_sec == 0 && time.tv_usec == 0) return Nanos::max();
  constexpr time_t kForEver = 1'000'000'000;
  if (time.tv_sec >= kForEver) return Nanos::max();
  return Nanos(std::chrono::seconds(time.tv_sec) + std::chrono::microseconds(time.tv_usec));
}

Status write_timeout(void* value, socklen_t* length, Nanos timeout) {
  timeval time{};
  if (timeout != Nanos::max()) {
    time.tv_sec = std::chrono::duration_cast<std::chrono::seconds>(timeout).count();
    time.tv_usec = std::chrono::duration_cast<std::chrono::microseconds>(timeout).count() % 1'000'000;
  }
  return write_value(value, length, &time, sizeof time);
}

}  // namespace ringsock::rs
