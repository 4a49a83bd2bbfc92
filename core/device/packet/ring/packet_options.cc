#include "core/device/packet/ring/packet_options.h"

#include <sys/utsname.h>

#include <cstdio>

namespace ringsock::soft {

bool kernel_segments_udp() {
  utsname kernel{};
  int major = 0, minor = 0;
  if (::uname(&kernel) != 0 || std::sscanf(kernel.release, "%d.%d", &major, &minor) != 2) return false;
  return major > 6 || (major == 6 && minor >= 2);
}

}  // namespace ringsock::soft
