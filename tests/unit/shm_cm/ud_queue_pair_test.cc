// UD queue pairs: datagrams, and how two sides find each other by the connection manager.
#include <sys/un.h>

#include <cstring>

#include "core/device/shm/queue/ud_wire.h"
#include "tests/unit/shm_cm/other_process.h"
#include "tests/unit/shm_cm/soft_host.h"

namespace ringsock::tests {
namespace {

constexpr std::uint32_t kQkey = 0x01234567;
constexpr std::size_t kGrh = 40;

/// A UD queue pair with one registered page for receiving and one for sending.
struct Station {
  SoftHost& host;
  std::vector<std::byte> memory = std::vector<std::byte>(16384);
  verbs::Mr mr;
  verbs::Qp qp;
  verbs::Ah ah;

  explicit Station(SoftHost& on, std::uint32_t qkey = kQkey) : host(on) {
    mr = std::move(*host.device->reg_mr(*host.pd, memory.data(), memory.size(), IBV_ACCESS_LOCAL_WRITE));
    ibv_qp_init_attr attr{};
    attr.send_cq = attr.recv_cq = host.cq.get();
    attr.cap = {8, 16, 2, 2, 64};
    attr.qp_type = IBV_QPT_UD;
    attr.sq_sig_all = 0;
    qp = std::move(*host.device->create_qp(*host.pd, attr));
    go(IBV_QPS_INIT, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY, qkey);
    go(IBV_QPS_RTR, IBV_QP_STATE, qkey);
    go(IBV_QPS_RTS, IBV_QP_STATE | IBV_QP_SQ_PSN, qkey);
    ibv_ah_attr to{};
    to.port_num = 1;
    to.is_global = 1;
    to.grh.dgid.raw[15] = 9;
    ah = std::move(*host.device->create_ah(*host.pd, to));
  }
  void go(ibv_qp_state state, int mask, std::uint32_t qkey = kQkey) {
    ibv_qp_attr attr{};
    attr.qp_state = state;
    attr.port_num = 1;
    attr.qkey = qkey;
    EXPECT_TRUE(host.device->modify_qp(*qp, attr, mask));
  }
  void receive_into(std::uint64_t wr_id, std::size_t offset = 0, std::uint32_t length = 8192) {
    ibv_sge sge{reinterpret_cast<std::uint64_t>(memory.data() + offset), length, mr->lkey};
    ibv_recv_wr wr{wr_id, nullptr, &sge, 1};
    ibv_recv_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_recv(qp.get(), &wr, &bad), 0);
  }
  int send(std::uint32_t to, std::string_view what, unsigned flags = 0, std::uint32_t qkey = kQkey) {
    std::memcpy(memory.data() + 8192, what.data(), what.size());
    return send_from(to, memory.data() + 8192, static_cast<std::uint32_t>(what.size()), mr->lkey, flags, qkey);
  }
  int send_from(std::uint32_t to, const void* from, std::uint32_t length, std::uint32_t lkey, unsigned flags = 0,
                std::uint32_t qkey = kQkey) {
    ibv_sge sge{reinterpret_cast<std::uint64_t>(from), length, lkey};
    ibv_send_wr wr{};
    wr.wr_id = 77;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND_WITH_IMM;
    wr.imm_data = 0x11223344;
    wr.send_flags = flags;
    wr.wr.ud = {ah.get(), to, qkey};
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(qp.get(), &wr, &bad);
  }
  std::string text_at(std::size_t offset, std::size_t length) const {
    return {reinterpret_cast<const char*>(memory.data()) + offset, length};
  }
  std::optional<ibv_wc> poll() {
    ibv_wc wc{};
    return ibv_poll_cq(host.cq.get(), 1, &wc) == 1 ? std::optional(wc) : std::nullopt;
  }
};

TEST(UdQueuePair, ADatagramArrivesWithItsSenderAndAGrh) {
  SoftHost alices, bobs;
  Station alice(alices), bob(bobs);
  bob.receive_into(5);
  ASSERT_EQ(alice.send(bob.qp->qp_num, "hello", IBV_SEND_SIGNALED), 0);

  const auto sent = alice.poll();
  ASSERT_TRUE(sent);
  EXPECT_EQ(sent->status, IBV_WC_SUCCESS);
  EXPECT_EQ(sent->opcode, IBV_WC_SEND);
  EXPECT_EQ(sent->wr_id, 77u);

  const auto got = bob.poll();
  ASSERT_TRUE(got);
  EXPECT_EQ(got->status, IBV_WC_SUCCESS);
  EXPECT_EQ(got->opcode, IBV_WC_RECV);
  EXPECT_EQ(got->wr_id, 5u);
  EXPECT_EQ(got->byte_len, kGrh + 5);
  EXPECT_EQ(got->src_qp, alice.qp->qp_num);
  EXPECT_EQ(got->wc_flags, static_cast<unsigned>(IBV_WC_GRH | IBV_WC_WITH_IMM));
  EXPECT_EQ(got->imm_data, 0x11223344u);
  EXPECT_EQ(bob.text_at(kGrh, 5), "hello");
  ibv_grh grh{};
  std::memcpy(&grh, bob.memory.data(), sizeof grh);
  EXPECT_EQ(grh.dgid.raw[15], 9);
}

TEST(UdQueuePair, NumbersAreUniqueOnTheHost) {
  SoftHost host;
  Station a(host), b(host);
  EXPECT_NE(a.qp->qp_num, b.qp->qp_num);
  EXPECT_LT(a.qp->qp_num, 1u << 24);
}

TEST(UdQueuePair, ADatagramWithoutAReceiveIsLost) {
  SoftHost host;
  Station alice(host), bob(host);
  ASSERT_EQ(alice.send(bob.qp->qp_num, "lost"), 0);
  EXPECT_FALSE(bob.poll());
  bob.receive_into(1);
  EXPECT_FALSE(bob.poll());
  ASSERT_EQ(alice.send(bob.qp->qp_num, "found"), 0);
  EXPECT_TRUE(bob.poll());
}

TEST(UdQueuePair, ADatagramWithTheWrongQkeyIsLost) {
  SoftHost host;
  Station alice(host), bob(host, 42);
  bob.receive_into(1);
  ASSERT_EQ(alice.send(bob.qp->qp_num, "wrong"), 0);
  EXPECT_FALSE(bob.poll());
  ASSERT_EQ(alice.send(bob.qp->qp_num, "right", 0, 42), 0);
  EXPECT_TRUE(bob.poll());
}

TEST(UdQueuePair, APrivilegedQkeyInARequestStandsForTheQueuePairsOwn) {
  SoftHost host;
  Station alice(host), bob(host);
  bob.receive_into(1);
  ASSERT_EQ(alice.send(bob.qp->qp_num, "own", 0, 1u << 31), 0);
  EXPECT_TRUE(bob.poll());
}

TEST(UdQueuePair, ADatagramThatDoesNotFitIsLostAndTheReceiveWaits) {
  SoftHost host;
  Station alice(host), bob(host);
  bob.receive_into(1, 0, kGrh + 4);
  ASSERT_EQ(alice.send(bob.qp->qp_num, "12345"), 0);
  EXPECT_FALSE(bob.poll());
  ASSERT_EQ(alice.send(bob.qp->qp_num, "1234"), 0);
  const auto got = bob.poll();
  ASSERT_TRUE(got);
  EXPECT_EQ(got->byte_len, kGrh + 4);
}

TEST(UdQueuePair, SendingToNobodyAndToAFullSocketIsNoError) {
  SoftHost host;
  Station alice(host), bob(host);
  EXPECT_EQ(alice.send(1, "nobody has number 1", IBV_SEND_SIGNALED), 0);
  EXPECT_EQ(alice.poll()->status, IBV_WC_SUCCESS);
  for (int i = 0; i < 10'000; ++i) ASSERT_EQ(alice.send(bob.qp->qp_num, "again and again"), 0);
}

TEST(UdQueuePair, AMessageLongerThanTheMtuIsALocalLengthError) {
  SoftHost host;
  Station alice(host), bob(host);
  bob.receive_into(1);
  EXPECT_EQ(alice.send_from(bob.qp->qp_num, alice.memory.data(), 4096, alice.mr->lkey), 0);
  EXPECT_EQ(bob.poll()->byte_len, kGrh + 4096);
  EXPECT_EQ(alice.send_from(bob.qp->qp_num, alice.memory.data(), 4097, alice.mr->lkey), 0);
  EXPECT_EQ(alice.poll()->status, IBV_WC_LOC_LEN_ERR);
  // The send queue is in error: what follows is flushed until the program brings it back.
  EXPECT_EQ(host.state(*alice.qp), IBV_QPS_SQE);
  EXPECT_EQ(alice.send(bob.qp->qp_num, "flushed"), 0);
  EXPECT_EQ(alice.poll()->status, IBV_WC_WR_FLUSH_ERR);
  alice.go(IBV_QPS_RTS, IBV_QP_STATE);
  bob.receive_into(2);
  EXPECT_EQ(alice.send(bob.qp->qp_num, "back"), 0);
  EXPECT_EQ(bob.poll()->wr_id, 2u);
}

TEST(UdQueuePair, MemoryThatIsNotRegisteredIsAProtectionError) {
  SoftHost host;
  Station alice(host), bob(host);
  bob.receive_into(1);
  const char outside[] = "outside";
  EXPECT_EQ(alice.send_from(bob.qp->qp_num, outside, sizeof outside, alice.mr->lkey), 0);
  EXPECT_EQ(alice.poll()->status, IBV_WC_LOC_PROT_ERR);
  EXPECT_FALSE(bob.poll());
  // Inline data need no registration.
  alice.go(IBV_QPS_RTS, IBV_QP_STATE);
  EXPECT_EQ(alice.send_from(bob.qp->qp_num, outside, sizeof outside, 0, IBV_SEND_INLINE), 0);
  EXPECT_EQ(bob.poll()->byte_len, kGrh + sizeof outside);
}

TEST(UdQueuePair, AReceiveIntoMemoryThatIsNotRegisteredIsAProtectionError) {
  SoftHost host;
  Station alice(host), bob(host);
  ibv_sge sge{reinterpret_cast<std::uint64_t>(&host), 4096, bob.mr->lkey};
  ibv_recv_wr wr{3, nullptr, &sge, 1};
  ibv_recv_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_recv(bob.qp.get(), &wr, &bad), 0);
  ASSERT_EQ(alice.send(bob.qp->qp_num, "x"), 0);
  EXPECT_EQ(bob.poll()->status, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(host.state(*bob.qp), IBV_QPS_ERR);
}

TEST(UdQueuePair, AnErrorStateFlushesReceives) {
  SoftHost host;
  Station bob(host);
  bob.receive_into(1);
  bob.receive_into(2);
  bob.go(IBV_QPS_ERR, IBV_QP_STATE);
  for (const std::uint64_t wr_id : {1u, 2u}) {
    const auto flushed = bob.poll();
    ASSERT_TRUE(flushed);
    EXPECT_EQ(flushed->status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(flushed->wr_id, wr_id);
  }
  EXPECT_FALSE(bob.poll());
}

TEST(UdQueuePair, StatesFollowTheirOrder) {
  SoftHost host;
  Station bob(host);
  bob.go(IBV_QPS_RESET, IBV_QP_STATE);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTS;
  EXPECT_EQ(host.device->modify_qp(*bob.qp, attr, IBV_QP_STATE | IBV_QP_SQ_PSN).error().code, EINVAL);
  attr.qp_state = IBV_QPS_INIT;
  EXPECT_EQ(host.device->modify_qp(*bob.qp, attr, IBV_QP_STATE).error().code, EINVAL);
  EXPECT_EQ(bob.send(1, "not ready"), EINVAL);
}

TEST(UdQueuePair, ASleeperIsWokenByAChannel) {
  SoftHost host(true);
  Station alice(host), bob(host);
  bob.receive_into(1);
  ASSERT_EQ(ibv_req_notify_cq(host.cq.get(), 0), 0);
  ASSERT_FALSE(bob.poll());
  EXPECT_FALSE(host.device->get_cq_event(*host.channel));
  ASSERT_EQ(alice.send(bob.qp->qp_num, "wake up"), 0);
  pollfd wait{host.channel->fd, POLLIN, 0};
  ASSERT_EQ(::poll(&wait, 1, 5000), 1);
  const auto cq = host.device->get_cq_event(*host.channel);
  ASSERT_TRUE(cq);
  EXPECT_EQ(*cq, host.cq.get());
  host.device->ack_cq_events(**cq, 1);
  EXPECT_TRUE(bob.poll());
  EXPECT_EQ(::poll(&wait, 1, 0), 0);
}

TEST(UdQueuePair, ASleeperForSolicitedEventsSleepsThroughOthers) {
  SoftHost host(true);
  Station alice(host), bob(host);
  bob.receive_into(1);
  bob.receive_into(2);
  ASSERT_EQ(ibv_req_notify_cq(host.cq.get(), 1), 0);
  ASSERT_EQ(alice.send(bob.qp->qp_num, "psst"), 0);
  EXPECT_FALSE(host.device->get_cq_event(*host.channel));
  ASSERT_EQ(alice.send(bob.qp->qp_num, "hey", IBV_SEND_SOLICITED), 0);
  const auto cq = host.device->get_cq_event(*host.channel);
  ASSERT_TRUE(cq);
  host.device->ack_cq_events(**cq, 1);
  EXPECT_EQ(bob.poll()->wr_id, 1u);
  EXPECT_EQ(bob.poll()->wr_id, 2u);
}

TEST(UdQueuePair, ReceivesComeFromASharedQueue) {
  SoftHost host;
  Station alice(host);
  ibv_srq_init_attr srq_attr{};
  srq_attr.attr = {4, 1, 0};
  auto srq = host.device->create_srq(*host.pd, srq_attr);
  ASSERT_TRUE(srq);
  ibv_qp_init_attr attr{};
  attr.send_cq = attr.recv_cq = host.cq.get();
  attr.srq = srq->get();
  attr.cap = {1, 0, 1, 0, 0};
  attr.qp_type = IBV_QPT_UD;
  Station bob(host);
  bob.qp = std::move(*host.device->create_qp(*host.pd, attr));
  bob.go(IBV_QPS_INIT, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
  bob.go(IBV_QPS_RTR, IBV_QP_STATE);
  ibv_sge sge{reinterpret_cast<std::uint64_t>(bob.memory.data()), 4096, bob.mr->lkey};
  ibv_recv_wr wr{8, nullptr, &sge, 1};
  ibv_recv_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_srq_recv(srq->get(), &wr, &bad), 0);
  ASSERT_EQ(alice.send(bob.qp->qp_num, "shared"), 0);
  const auto got = bob.poll();
  ASSERT_TRUE(got);
  EXPECT_EQ(got->wr_id, 8u);
  EXPECT_EQ(bob.text_at(kGrh, 6), "shared");
  bob.qp.reset();
}

TEST(UdQueuePair, GarbageOnItsSocketIsDropped) {
  SoftHost host;
  Station alice(host), bob(host);
  bob.receive_into(1);
  const UniqueFd hostile(::socket(AF_UNIX, SOCK_DGRAM, 0));
  const soft::AbstractAddress name("ringsock1/ud/" + std::to_string(bob.qp->qp_num));
  const std::vector<char> bytes(8192, 1);
  for (const std::size_t size : {0u, 1u, 31u, 32u, 4128u, 4129u, 8192u}) {
    ASSERT_EQ(::sendto(hostile.get(), bytes.data(), size, 0, name.get(), name.length), static_cast<ssize_t>(size));
    EXPECT_FALSE(bob.poll());
  }
  ASSERT_EQ(alice.send(bob.qp->qp_num, "still there"), 0);
  EXPECT_TRUE(bob.poll());
}

/// Two queue pairs with rings to each other.
struct RingPair {
  explicit RingPair(SoftHost& alices, SoftHost& bobs) : alice(alices), bob(bobs) {
    for (Station* one : {&alice, &bob}) one->host.device->ud().use_rings(*one->qp);
    EXPECT_TRUE(alice.host.device->ud().open_ring(*alice.qp, bob.qp->qp_num));
    EXPECT_FALSE(alice.host.device->ud().open_ring(*alice.qp, bob.qp->qp_num)) << "it is there already";
    EXPECT_FALSE(bob.poll());  // takes the ring
  }
  /// What became of a datagram of Alice's: 0, or verbs::kVendorErrNobody.
  std::uint32_t send(std::string_view what) {
    EXPECT_EQ(alice.send(number, what, IBV_SEND_SIGNALED), 0);
    const auto sent = alice.poll();
    EXPECT_EQ(sent->status, IBV_WC_SUCCESS);
    return sent->vendor_err;
  }
  Station alice, bob;
  std::uint32_t number = bob.qp->qp_num;
};

TEST(UdRings, CarryDatagramsInOrder) {
  SoftHost alices, bobs;
  RingPair pair(alices, bobs);
  pair.bob.receive_into(1);
  pair.bob.receive_into(2, 4096, 4096);
  EXPECT_EQ(pair.send("first"), 0u);
  EXPECT_EQ(pair.send("second"), 0u);
  const auto first = pair.bob.poll();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->wr_id, 1u);
  EXPECT_EQ(first->src_qp, pair.alice.qp->qp_num);
  EXPECT_EQ(first->imm_data, 0x11223344u);
  EXPECT_EQ(pair.bob.text_at(kGrh, 5), "first");
  EXPECT_EQ(pair.bob.poll()->wr_id, 2u);
  EXPECT_EQ(pair.bob.text_at(4096 + kGrh, 6), "second");
}

TEST(UdRings, WakeASleeper) {
  SoftHost alices, bobs(true);
  RingPair pair(alices, bobs);
  for (const std::uint64_t round : {1u, 2u, 3u}) {
    pair.bob.receive_into(round);
    ASSERT_EQ(ibv_req_notify_cq(bobs.cq.get(), 0), 0);
    ASSERT_FALSE(pair.bob.poll());
    EXPECT_EQ(pair.send("wake up"), 0u);
    pollfd wait{bobs.channel->fd, POLLIN, 0};
    ASSERT_EQ(::poll(&wait, 1, 5000), 1);
    const auto cq = bobs.device->get_cq_event(*bobs.channel);
    ASSERT_TRUE(cq);
    bobs.device->ack_cq_events(**cq, 1);
    EXPECT_EQ(pair.bob.poll()->wr_id, round);
  }
}

TEST(UdRings, EndWithTheReceiver) {
  SoftHost alices, bobs;
  RingPair pair(alices, bobs);
  pair.bob.qp.reset();
  EXPECT_EQ(pair.send("anybody?"), verbs::kVendorErrNobody);
  EXPECT_EQ(pair.send("anybody?"), verbs::kVendorErrNobody);
}

TEST(UdRings, EndWithAReceiverThatHasNotHeardOfThem) {
  SoftHost alices, bobs;
  Station alice(alices);
  std::optional<Station> bob(bobs);
  alices.device->ud().use_rings(*alice.qp);
  bobs.device->ud().use_rings(*bob->qp);
  const std::uint32_t number = bob->qp->qp_num;
  ASSERT_TRUE(alices.device->ud().open_ring(*alice.qp, number));
  bob->qp.reset();
  ASSERT_EQ(alice.send(number, "anybody?", IBV_SEND_SIGNALED), 0);
  EXPECT_EQ(alice.poll()->vendor_err, verbs::kVendorErrNobody);
}

TEST(UdRings, ThatAreFullLoseWhatComes) {
  SoftHost alices, bobs;
  RingPair pair(alices, bobs);
  for (int i = 0; i < 10'000; ++i) ASSERT_EQ(pair.send("again and again"), 0u);
  pair.bob.receive_into(1);
  EXPECT_TRUE(pair.bob.poll());
}

TEST(UdRings, AreOnlyForThoseThatAskedForThem) {
  SoftHost host;
  Station alice(host), bob(host);
  EXPECT_FALSE(host.device->ud().open_ring(*alice.qp, bob.qp->qp_num));
  host.device->ud().use_rings(*alice.qp);
  EXPECT_FALSE(host.device->ud().open_ring(*alice.qp, 1)) << "nobody has number 1";
}

TEST(UdWire, EveryTruncationAndUnknownValueIsRefused) {
  soft::DatagramHeader header{};
  header.version = soft::kDatagramVersion;
  std::vector<std::byte> packet(sizeof header + soft::kMaxDatagramBytes + 1);
  std::memcpy(packet.data(), &header, sizeof header);
  const auto parse = [&](std::size_t size) { return soft::parse_datagram(std::span(packet).first(size)); };
  for (std::size_t size = 0; size < sizeof header; ++size) EXPECT_FALSE(parse(size));
  EXPECT_TRUE(parse(sizeof header));
  EXPECT_TRUE(parse(packet.size() - 1));
  EXPECT_FALSE(parse(packet.size()));
  for (const auto spoil : {&soft::DatagramHeader::version, &soft::DatagramHeader::flags}) {
    soft::DatagramHeader bad = header;
    bad.*spoil = 0x8000;
    std::memcpy(packet.data(), &bad, sizeof bad);
    EXPECT_FALSE(parse(sizeof header));
  }
  header.source_qpn = 1u << 24;
  std::memcpy(packet.data(), &header, sizeof header);
  EXPECT_FALSE(parse(sizeof header));
}

TEST(UdQueuePairProcesses, OnlyTheSameUserAndRootAreHeard) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to be several users";
  SoftHost host;
  Station here(host);
  here.receive_into(1);
  // Alice waits for root and for Bob, and reports whom she heard.
  OtherProcess alice(kAlice, [](Channel parent) {
    SoftHost mine;
    Station station(mine);
    station.receive_into(1);
    station.receive_into(2);
    parent.tell(station.qp->qp_num);
    while (const auto go = parent.hear()) {
      const auto wc = station.poll();
      parent.tell(wc ? wc->src_qp : 0);
    }
    return 0;
  });
  const auto to = alice.channel().hear();
  ASSERT_TRUE(to);
  OtherProcess bob(kBob, [&](Channel parent) {
    SoftHost mine;
    Station station(mine);
    const int sent_to_alice = station.send(*to, "bob");
    const int sent_to_root = station.send(here.qp->qp_num, "bob");
    parent.tell(1);
    return sent_to_alice | sent_to_root;
  });
  ASSERT_TRUE(bob.channel().hear());
  EXPECT_EQ(bob.wait(), 0);
  alice.channel().tell(1);
  EXPECT_EQ(alice.channel().hear(), 0u);
  EXPECT_FALSE(here.poll());

  ASSERT_EQ(here.send(*to, "root"), 0);
  alice.channel().tell(1);
  EXPECT_EQ(alice.channel().hear(), here.qp->qp_num);
}

TEST(UdConnect, TheClientLearnsWhereToSend) {
  SoftHost host;
  auto listener = host.listener(kLoopback, 8, PortSpace::udp);
  auto client = host.id(PortSpace::udp);
  resolve(*client, listener->local_address());
  ASSERT_TRUE(client->connect(with("who are you")));
  CmEvent request = next(*listener);
  ASSERT_EQ(request.type, CmEventType::connect_request);
  EXPECT_EQ(text(request), "who are you");
  End server{std::move(request.request), {}};
  EXPECT_FALSE(server.id->accept({}));  // a queue pair first
  server.qp = host.queue_pair(*server.id, IBV_QPT_UD, 0);
  ASSERT_TRUE(server.id->accept(with("a service")));
  const CmEvent established = next(*client);
  ASSERT_EQ(established.type, CmEventType::established);
  EXPECT_EQ(text(established), "a service");
  EXPECT_EQ(established.remote_qpn, server.qp.qp->qp_num);
  EXPECT_EQ(established.remote_qkey, kQkey);
  EXPECT_EQ(client->event_fd(), -1);

  // And what it learnt is enough to send.
  Station sender(host);
  ibv_ah_attr to = established.ah_attr;
  sender.ah = std::move(*host.device->create_ah(*host.pd, to));
  ibv_sge sge{reinterpret_cast<std::uint64_t>(sender.memory.data()), 4096, sender.mr->lkey};
  ibv_recv_wr wr{6, nullptr, &sge, 1};
  ibv_recv_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_recv(server.qp.qp.get(), &wr, &bad), 0);
  ASSERT_EQ(sender.send(established.remote_qpn, "datagram", 0, established.remote_qkey), 0);
  const auto got = sender.poll();
  ASSERT_TRUE(got);
  EXPECT_EQ(got->wr_id, 6u);
  EXPECT_EQ(sender.text_at(kGrh, 8), "datagram");
  server.close();
}

TEST(UdConnect, ARejectedServiceIsRejected) {
  SoftHost host;
  auto listener = host.listener(kLoopback, 8, PortSpace::udp);
  auto client = host.id(PortSpace::udp);
  resolve(*client, listener->local_address());
  ASSERT_TRUE(client->connect({}));
  ASSERT_TRUE(next(*listener).request->reject(bytes("no")));
  const CmEvent event = next(*client);
  EXPECT_EQ(event.type, CmEventType::rejected);
  EXPECT_EQ(text(event), "no");
}

}  // namespace
}  // namespace ringsock::tests
