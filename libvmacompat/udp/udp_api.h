// What the Extra API learns of a UDP socket.
#pragma once

#include "libvmacompat/process/ring_socket.h"
#include "libvmacompat/udp/flows.h"
#include "libvmacompat/udp/polled_rings.h"
#include "libvmacompat/udp/receive_callback.h"
#include "libvmacompat/udp/sender.h"

namespace ringsock::vma {

/// Locks: takes those of the objects it asks. Threads: any.
class UdpApi final : public RingSocket {
 public:
  UdpApi(UdpSocket& socket, Flows& flows, Sender& sender, PolledRings& rings, ReceiveCallback& callback)
      : socket_(socket), flows_(flows), sender_(sender), rings_(rings), callback_(callback) {}

  std::vector<std::shared_ptr<ethernet::Ring>> receiving_rings() override;
  std::shared_ptr<ethernet::Ring> sending_ring(const SocketAddress& destination) override;
  std::vector<std::byte> headers_to_peer() override;
  Status set_callback(vma_recv_callback_t function, void* context) override {
    callback_.set(function, context);
    return ok();
  }
  Result<Received> receive_packets(PacketList& list, msghdr& message, int flags, bool never_copies) override;
  bool has_cyclic() override;
  Result<CyclicBatch> read_cyclic(std::size_t least, std::size_t most, bool wants_time) override;
  Result<CyclicMemory> cyclic_memory() override;
  std::uint32_t lender() override { return callback_.lender(); }
  RingUser* as_ring_user() noexcept override;

 private:
  void fill_cyclic(std::size_t least, std::size_t most);
  Result<Received> lend(const ethernet::Arrival& packet, PacketList& list, msghdr& message);
  Result<Received> receive_copy(msghdr& message, int flags, bool never_copies);

  UdpSocket& socket_;
  Flows& flows_;
  Sender& sender_;
  PolledRings& rings_;
  ReceiveCallback& callback_;
};

}  // namespace ringsock::vma
