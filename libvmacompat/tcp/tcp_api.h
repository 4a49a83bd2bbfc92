// What the Extra API learns of a TCP socket whose connection a ring carries.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "libvmacompat/process/api_socket.h"
#include "libvmacompat/process/lent_packets.h"
#include "libvmacompat/process/ring_user.h"
#include "libvmacompat/tcp/carried_connection.h"
#include "libvmacompat/tcp/carried_stream.h"
#include "libvmacompat/tcp/tcp_statistics.h"

namespace ringsock::vma {

class TcpSocket;

/// Pieces of the stream are lent in the memory of the engine's receive queue. They count as unread for the window until
/// they come back. Those that the program has when the connection goes to the kernel stay lent by LentPackets::kLeft.
/// Threads: any.
class TcpApi final : public ApiSocket, public RingUser {
 public:
  TcpApi(TcpSocket& socket, CarriedConnection& connection, CarriedStream& stream, TcpStatistics& statistics)
      : socket_(socket), connection_(connection), stream_(stream), statistics_(statistics) {}

  std::vector<std::shared_ptr<ethernet::Ring>> receiving_rings() override;
  std::shared_ptr<ethernet::Ring> sending_ring(const SocketAddress&) override { return nullptr; }
  std::vector<std::byte> headers_to_peer() override { return {}; }
  Status set_callback(vma_recv_callback_t function, void* context) override;
  Result<Received> receive_packet(msghdr& message, std::size_t least_room, int flags, bool never_copies) override;
  std::uint32_t lender() override { return lender_.number(); }
  void packets_freed() override;

  /// The kernel has the connection now. Called without locks.
  void leave_to_kernel() noexcept { lender_.leave_to_kernel(); }
  /// The socket is closed.
  void end() noexcept { lender_.end(); }

  // -- RingUser: the connection follows the network itself (TcpClock)
  ApiSocket& api() noexcept override { return *this; }
  void follow_addresses() override {}
  void follow_netfilter() override {}
  void refresh_statistics() override;
  bool trace(std::uint32_t segments) override;

 private:
  class Memory;

  bool lend_piece(engine::tcp::TcpConnection& engine, Nanos now, Received& out) noexcept;
  std::size_t lend_pieces(engine::tcp::TcpConnection& engine, Nanos now, std::size_t most, Received& out);
  Result<Received> receive_copy(msghdr& message, int flags, bool never_copies);
  Result<Received> failed(Error error);

  TcpSocket& socket_;
  CarriedConnection& connection_;
  CarriedStream& stream_;
  TcpStatistics& statistics_;
  Lender lender_;
  /// Bytes that have come back and that the engine does not know of yet.
  const std::shared_ptr<std::atomic<std::size_t>> returned_ = std::make_shared<std::atomic<std::size_t>>(0);
};

}  // namespace ringsock::vma
