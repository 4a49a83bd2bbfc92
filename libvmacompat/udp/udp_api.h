// What the Extra API learns of a UDP socket.
#pragma once

#include "libvmacompat/process/api_socket.h"
#include "libvmacompat/udp/flows.h"
#include "libvmacompat/udp/polled_rings.h"
#include "libvmacompat/udp/sender.h"

namespace ringsock::vma {

/// Locks: takes those of the objects it asks. Threads: any.
class UdpApi final : public ApiSocket {
 public:
  UdpApi(Flows& flows, Sender& sender, PolledRings& rings) : flows_(flows), sender_(sender), rings_(rings) {}

  std::vector<std::shared_ptr<ethernet::Ring>> receiving_rings() override;
  std::shared_ptr<ethernet::Ring> sending_ring(const SocketAddress& destination) override;
  std::vector<std::byte> headers_to_peer() override;

 private:
  Flows& flows_;
  Sender& sender_;
  PolledRings& rings_;
};

}  // namespace ringsock::vma
