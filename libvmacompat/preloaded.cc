// libvma: connects the intercepted calls with the sockets that may use Ethernet rings.
#include <mellanox/vma_extra.h>
#include <netinet/in.h>

#include "core/base/at_fork.h"
#include "core/base/rare_calls.h"
#include "libvmacompat/extra_api/extra_api.h"
#include "libvmacompat/process/vma_process.h"
#include "libvmacompat/udp/udp_socket.h"
#include "preload/shell.h"

namespace ringsock::vma {
namespace {

bool may_use_rings(int domain, int type, int protocol) {
  if (domain != AF_INET && domain != AF_INET6) return false;
  if ((type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC)) != SOCK_DGRAM) return false;
  if (protocol != 0 && protocol != IPPROTO_UDP) return false;
  return is_known_process() && are_ethernet_rings_permitted() && process().may_use_rings(SOCK_DGRAM);
}

runtime::Ref make_socket(int fd, int domain, int) { return runtime::Ref(new UdpSocket(domain, fd)); }

[[gnu::constructor(101)]] void join() {
  preload::calling_shell().carry({.may_carry = &may_use_rings,
                                  .make = &make_socket,
                                  .answer_option = &answer_library_option,
                                  .send_flags = VMA_SND_FLAGS_DUMMY});
}

}  // namespace
}  // namespace ringsock::vma
