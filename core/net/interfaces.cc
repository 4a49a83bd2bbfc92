#include "core/net/interfaces.h"

#include <linux/if_addr.h>
#include <linux/if_arp.h>

namespace ringsock::net {

bool Link::is_up() const { return (flags & IFF_UP) != 0; }

bool Link::is_running() const { return is_up() && (flags & IFF_LOWER_UP) != 0; }

bool Link::is_ethernet() const { return type == ARPHRD_ETHER; }

bool Link::is_loopback() const { return (flags & IFF_LOOPBACK) != 0; }

bool Link::needs_neighbours() const { return (flags & (IFF_NOARP | IFF_LOOPBACK | IFF_POINTOPOINT)) == 0; }

bool InterfaceAddress::is_deprecated() const { return (flags & IFA_F_DEPRECATED) != 0; }

bool InterfaceAddress::is_tentative() const {
  // An optimistic address (RFC 4429) may be used while it is being checked.
  if ((flags & IFA_F_DADFAILED) != 0) return true;
  return (flags & IFA_F_TENTATIVE) != 0 && (flags & IFA_F_OPTIMISTIC) == 0;
}

}  // namespace ringsock::net
