// What the Extra API learns of a TCP socket whose connection a ring carries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "libvmacompat/process/ring_socket.h"
#include "libvmacompat/process/ring_user.h"
#include "libvmacompat/tcp/carried_connection.h"
#include "libvmacompat/tcp/carried_stream.h"
#include "libvmacompat/tcp/tcp_callback.h"
#include "libvmacompat/tcp/tcp_events.h"
#include "libvmacompat/tcp/tcp_lender.h"
#include "libvmacompat/tcp/tcp_statistics.h"

namespace ringsock::vma {

class TcpSocket;

/// Threads: any.
class TcpApi final : public RingSocket, public RingUser {
 public:
  TcpApi(TcpSocket& socket, CarriedConnection& connection, CarriedStream& stream, TcpStatistics& statistics,
         TcpLender& lender, TcpCallback& callback, TcpEvents& events)
      : socket_(socket),
        connection_(connection),
        stream_(stream),
        statistics_(statistics),
        lender_(lender),
        callback_(callback),
        events_(events) {}

  std::vector<std::shared_ptr<ethernet::Ring>> receiving_rings() override;
  std::shared_ptr<ethernet::Ring> sending_ring(const SocketAddress&) override { return nullptr; }
  std::vector<std::byte> headers_to_peer() override { return {}; }
  Status set_callback(vma_recv_callback_t function, void* context) override;
  Result<Received> receive_packets(PacketList& list, msghdr& message, int flags, bool never_copies) override;
  std::uint32_t lender() override { return lender_.number(); }
  void packets_freed() override { lender_.packets_freed(); }

  // -- RingUser: the connection follows the network itself (TcpClock)
  RingUser* as_ring_user() noexcept override { return this; }
  RingSocket& api() noexcept override { return *this; }
  void follow_addresses() override {}
  void follow_netfilter() override {}
  void refresh_statistics() override;
  bool trace(std::uint32_t segments) override;

 private:
  std::size_t lend_pieces(engine::tcp::TcpConnection& engine, Nanos now, PacketList& list) noexcept;
  Result<Received> receive_copy(msghdr& message, int flags, bool never_copies);
  Result<Received> failed(Error error);

  TcpSocket& socket_;
  CarriedConnection& connection_;
  CarriedStream& stream_;
  TcpStatistics& statistics_;
  TcpLender& lender_;
  TcpCallback& callback_;
  TcpEvents& events_;
};

}  // namespace ringsock::vma
