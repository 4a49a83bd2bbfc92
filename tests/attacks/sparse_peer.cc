// A peer whose receive buffers are one byte each, in a page each: what the victim sends makes pages of shared memory.
//
//     sparse_peer PORT BYTES      tells how many came back, and stays if all did; 3: the victim refused; 1: else
//     sparse_peer PORT flood MS   sends control messages of the rsockets protocol for so long
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "core/base/clock.h"
#include "core/device/shm/soft_device.h"
#include "core/verbs/connection_manager.h"
#include "core/wire/rs_connect.h"
#include "core/wire/rs_message.h"

namespace ringsock {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kTable = 64;  ///< announced buffers of the victim
constexpr std::size_t kReceives = 64;
constexpr auto kPatience = std::chrono::seconds(3);

[[noreturn]] void end(int status, const char* what, std::size_t bytes) {
  std::printf("%zu bytes echoed: %s\n", bytes, what);
  std::fflush(stdout);
  std::_Exit(status);
}

class SparsePeer {
 public:
  SparsePeer(std::uint16_t port, std::size_t pages)
      : pages_(pages),
        device_(std::move(*soft::SoftDevice::open())),
        pd_(std::move(*device_->alloc_pd())),
        cq_(std::move(*device_->create_cq(1024, nullptr, nullptr, 0))),
        id_(std::move(*device_->create_id(verbs::PortSpace::tcp))) {
    const SocketAddress server = SocketAddress::v4(INADDR_LOOPBACK, port);
    if (!id_->resolve_addr(server, kPatience)) end(1, "resolve_addr", 0);
    next();
    if (!id_->resolve_route(kPatience)) end(1, "resolve_route", 0);
    next();
    make_queue_pair();
    connect();
  }

  /// One byte there, one byte back, each into a page of its own.
  void echo(std::size_t index) {
    if (index > 0) announce(index);
    write(wire::RsOpcode::data, 1, first_.addr.host() + index, first_.key.host(), "x", 1);
    wait_for_data(index);
  }

  /// Keepalives and credit updates need no credit, so nothing bounds them but the ring.
  std::size_t flood(Nanos time) {
    const Nanos over = monotonic_now() + time;
    std::size_t sent = 0;
    for (; monotonic_now() < over; ++sent) {
      write(sent % 2 == 0 ? wire::RsOpcode::ctrl : wire::RsOpcode::sgl, sent % 2 == 0 ? 1 : kReceives / 2, 0, 0,
            nullptr, 0);
      ibv_wc completions[32];
      const int count = ibv_poll_cq(cq_.get(), 32, completions);
      for (int i = 0; i < count; ++i) take(completions[i]);
    }
    return sent;
  }

 private:
  void make_queue_pair() {
    ibv_qp_init_attr wanted{};
    wanted.send_cq = cq_.get();
    wanted.recv_cq = cq_.get();
    wanted.cap = {256, kReceives, 1, 1, 0};
    wanted.qp_type = IBV_QPT_RC;
    auto made = id_->create_qp(*pd_, wanted, (pages_ + 1) * kPage);
    if (!made) end(1, "create_qp", 0);
    qp_ = std::move(*made);
    for (std::size_t i = 0; i < kReceives; ++i) post_receive();
    source_ = std::make_unique<char[]>(kPage);
    source_mr_ = std::move(*device_->reg_mr(*pd_, source_.get(), kPage, IBV_ACCESS_LOCAL_WRITE));
  }

  /// The first page of our memory is the table of the victim's buffers; the others take a byte each.
  [[nodiscard]] std::uint64_t page(std::size_t index) const {
    return reinterpret_cast<std::uint64_t>(qp_.receive_memory.data()) + (index + 1) * kPage;
  }

  void connect() {
    wire::RsConnect data{};
    data.version = wire::kRsVersion;
    data.flags = wire::kRsLocalOrderFlag;
    data.credits = wire::Be16(kReceives / 2);
    data.target_sgl = {wire::Be64(page(0) - kPage), wire::Be32(qp_.receive_mr->rkey), wire::Be32(kTable)};
    data.first_buffer = {wire::Be64(page(0)), wire::Be32(qp_.receive_mr->rkey), wire::Be32(1)};
    verbs::ConnectionParameters parameters;
    parameters.private_data = std::as_bytes(std::span(&data, 1));
    if (!id_->connect(parameters)) end(3, "connect", 0);
    const verbs::CmEvent event = next();
    if (event.type != verbs::CmEventType::established) end(3, "the victim refused the connection", 0);
    auto reply = wire::parse_rs_connect(event.data());
    if (!reply) end(1, "reply", 0);
    table_ = reply->target_sgl;
    first_ = reply->first_buffer;
  }

  void announce(std::size_t index) {
    const wire::PeerSge sge{page(index), qp_.receive_mr->rkey, 1};
    const std::size_t slot = index % table_.length.host();  // the first buffer counts as slot 0
    write(wire::RsOpcode::write, 0, table_.addr.host() + slot * sizeof sge, table_.key.host(), &sge, sizeof sge);
    write(wire::RsOpcode::sgl, static_cast<std::uint32_t>(kReceives / 2 + index), 0, 0, nullptr, 0);
  }

  /// RsOpcode::write goes without a message word.
  void write(wire::RsOpcode opcode, std::uint32_t value, std::uint64_t to, std::uint32_t key, const void* from,
             std::uint32_t bytes) {
    char* const at = source_.get() + 64 * (turn_++ % 32);
    if (bytes > 0) std::memcpy(at, from, bytes);
    ibv_sge piece{reinterpret_cast<std::uint64_t>(at), bytes, source_mr_->lkey};
    ibv_send_wr request{}, *bad = nullptr;
    request.opcode = opcode == wire::RsOpcode::write ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_WRITE_WITH_IMM;
    request.send_flags = IBV_SEND_SIGNALED;
    request.sg_list = &piece;
    request.num_sge = bytes > 0 ? 1 : 0;
    request.imm_data = std::bit_cast<std::uint32_t>(wire::Be32(wire::encode_rs_message({opcode, value})));
    request.wr.rdma = {to, key};
    while (const int error = ibv_post_send(qp_.qp.get(), &request, &bad)) {
      ibv_wc completion;
      if (error != ENOMEM) end(3, "the victim ended the connection", echoed_);
      if (ibv_poll_cq(cq_.get(), 1, &completion) == 1) take(completion);
    }
  }

  void post_receive() {
    ibv_recv_wr request{}, *bad = nullptr;
    ibv_post_recv(qp_.qp.get(), &request, &bad);
  }

  void wait_for_data(std::size_t index) {
    const Nanos give_up = monotonic_now() + kPatience;
    while (echoed_ <= index) {
      ibv_wc completions[32];
      const int count = ibv_poll_cq(cq_.get(), 32, completions);
      for (int i = 0; i < count; ++i) take(completions[i]);
      if (count == 0 && monotonic_now() > give_up) end(3, "the victim sends no more", echoed_);
    }
  }

  void take(const ibv_wc& completion) {
    if (completion.status != IBV_WC_SUCCESS) end(3, "the victim ended the connection", echoed_);
    if ((completion.opcode & IBV_WC_RECV) == 0) return;
    post_receive();
    const std::uint32_t word = std::bit_cast<wire::Be32>(completion.imm_data).host();
    const wire::RsMessage message = wire::decode_rs_message(word);
    if (message.opcode == wire::RsOpcode::data) echoed_ += message.value;
  }

  verbs::CmEvent next() {
    const Nanos give_up = monotonic_now() + kPatience;
    for (;;) {
      auto event = id_->next_event();
      if (event) return std::move(*event);
      if (monotonic_now() > give_up) end(3, "the victim does not answer", 0);
      pollfd entry{id_->event_fd(), POLLIN, 0};
      ::poll(&entry, 1, 20);
    }
  }

  const std::size_t pages_;
  std::unique_ptr<soft::SoftDevice> device_;
  verbs::Pd pd_;
  verbs::Cq cq_;
  std::unique_ptr<verbs::ConnectionId> id_;
  std::unique_ptr<char[]> source_;
  verbs::Mr source_mr_;
  verbs::ConnectionQp qp_;
  wire::WireSge table_{}, first_{};
  std::size_t turn_ = 0;
  std::size_t echoed_ = 0;
};

}  // namespace
}  // namespace ringsock

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const auto port = static_cast<std::uint16_t>(std::strtoul(argv[1], nullptr, 10));
  if (argc > 3) {
    const std::size_t sent =
        ringsock::SparsePeer(port, 1000).flood(std::chrono::milliseconds(std::strtoul(argv[3], nullptr, 10)));
    std::printf("%zu control messages\n", sent);
    return 0;
  }
  const auto pages = std::strtoul(argv[2], nullptr, 10);
  ringsock::SparsePeer peer(port, pages);
  for (std::size_t i = 0; i < pages; ++i) peer.echo(i);
  std::printf("%zu bytes echoed: each landed in a page of its own\n", pages);
  std::fflush(stdout);
  for (;;) ::pause();  // so that the victim can be looked at
}
