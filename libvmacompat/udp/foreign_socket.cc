#include "libvmacompat/udp/foreign_socket.h"

#include <sys/socket.h>

#include <utility>

#include "core/base/close_elsewhere.h"
#include "core/device/shm/link/rights_gate.h"

namespace ringsock::vma {

void refuse_descriptors(int socket) { soft::shut_rights_gate(socket); }

void close_foreign_socket(UniqueFd socket) {
  if (!socket) return;
  ::shutdown(socket.get(), SHUT_RDWR);
  if (!soft::is_rights_gate_shut(socket.get())) close_elsewhere(std::move(socket));
}

}  // namespace ringsock::vma
