// A peer of datagram rsockets on raw verbs that keeps no rule, for the matrix of tests/vm: what does the other side do?
// Usage: raw_datagrams ADDRESS PORT
// Asks the datagram rsocket at an IPv4 address of this host, on an Ethernet link, for its queue pair, and sends
// nonsense there. Says "known", then "sent". Exit status: 0; 1 with a line on standard error when a call failed that
// must not.
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr std::uint32_t kQkey = 0x01234567;
constexpr std::size_t kMtu = 1024;
constexpr std::size_t kFlood = 2000;

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "raw_datagrams: %s: %s\n", what, std::strerror(errno));
  std::exit(1);
}

template <class T>
T* must(T* result, const char* what) {
  if (result == nullptr) fail(what);
  return result;
}

void must(int result, const char* what) {
  if (result != 0) fail(what);
}

void say(const char* word) {
  std::printf("%s\n", word);
  std::fflush(stdout);
}

std::string big_endian(std::uint32_t number, int bytes) {
  std::string out;
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) out += static_cast<char>(number >> shift & 0xff);
  return out;
}

/// The attacker: a UD queue pair and a UDP socket of one address.
class Attacker {
 public:
  Attacker(const char* address, const char* port) {
    victim_.sin_family = AF_INET;
    victim_.sin_port = htons(static_cast<std::uint16_t>(std::atoi(port)));
    if (inet_pton(AF_INET, address, &victim_.sin_addr) != 1) fail("address");
    own_ = victim_;
    own_.sin_port = 0;
    socket_ = ::socket(AF_INET, SOCK_DGRAM, 0);
    must(::bind(socket_, reinterpret_cast<sockaddr*>(&own_), sizeof own_), "bind");
    socklen_t length = sizeof own_;
    must(::getsockname(socket_, reinterpret_cast<sockaddr*>(&own_), &length), "getsockname");
    make_queue_pair();
  }

  /// Asks for the victim's number, as a ringsock would.
  void ask() {
    const std::string question = "UUUU" + std::string("\4\0\20\x33", 4) + big_endian(qp_->qp_num, 4) + "????" + "hello";
    pollfd wait{socket_, POLLIN, 0};
    for (int i = 0; i < 10; ++i) {
      if (::sendto(socket_, question.data(), question.size(), 0, reinterpret_cast<sockaddr*>(&victim_),
                   sizeof victim_) < 0)
        fail("sendto");
      if (::poll(&wait, 1, 1000) != 1) continue;
      std::array<unsigned char, 64> answer{};
      if (::recv(socket_, answer.data(), answer.size(), 0) != 16 || answer[5] != 7) continue;
      number_ = std::uint32_t{answer[9]} << 16 | std::uint32_t{answer[10]} << 8 | answer[11];
      return;
    }
    errno = ETIMEDOUT;
    fail("no answer");
  }

  void send(const std::string& bytes, std::uint32_t qkey = kQkey) {
    std::memcpy(memory_.data(), bytes.data(), bytes.size());
    ibv_sge sge{reinterpret_cast<std::uint64_t>(memory_.data()), static_cast<std::uint32_t>(bytes.size()), mr_->lkey};
    ibv_send_wr request{};
    request.sg_list = &sge;
    request.num_sge = 1;
    request.opcode = IBV_WR_SEND;
    request.send_flags = IBV_SEND_SIGNALED;
    request.wr.ud.ah = ah_;
    request.wr.ud.remote_qpn = number_;
    request.wr.ud.remote_qkey = qkey;
    ibv_send_wr* bad = nullptr;
    must(ibv_post_send(qp_, &request, &bad), "ibv_post_send");
    ibv_wc done{};
    while (ibv_poll_cq(cq_, 1, &done) == 0) {
    }
    if (done.status != IBV_WC_SUCCESS) fail(ibv_wc_status_str(done.status));
  }

  /// The header of a datagram, from any address.
  [[nodiscard]] std::string header(std::uint32_t host, std::uint16_t port, char version = 4, char length = 8) const {
    return std::string{version, length} + big_endian(port, 2) + big_endian(host, 4);
  }
  [[nodiscard]] std::string own_header(char version = 4, char length = 8) const {
    return header(ntohl(own_.sin_addr.s_addr), ntohs(own_.sin_port), version, length);
  }

 private:
  void make_queue_pair() {
    rdma_event_channel* const channel = must(rdma_create_event_channel(), "rdma_create_event_channel");
    rdma_cm_id* id = nullptr;
    must(rdma_create_id(channel, &id, nullptr, RDMA_PS_UDP), "rdma_create_id");
    sockaddr_in local = own_;
    local.sin_port = 0;
    must(rdma_bind_addr(id, reinterpret_cast<sockaddr*>(&local)), "rdma_bind_addr");
    ibv_context* const context = must(id->verbs, "device");
    ibv_pd* const pd = must(ibv_alloc_pd(context), "ibv_alloc_pd");
    cq_ = must(ibv_create_cq(context, 16, nullptr, nullptr, 0), "ibv_create_cq");
    mr_ = must(ibv_reg_mr(pd, memory_.data(), memory_.size(), IBV_ACCESS_LOCAL_WRITE), "ibv_reg_mr");
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq_;
    init.qp_type = IBV_QPT_UD;
    init.cap = {4, 1, 1, 1, 0};
    qp_ = must(ibv_create_qp(pd, &init), "ibv_create_qp");
    ibv_qp_attr attr{};
    attr.port_num = id->port_num;
    attr.qkey = kQkey;
    attr.qp_state = IBV_QPS_INIT;
    must(ibv_modify_qp(qp_, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), "INIT");
    attr.qp_state = IBV_QPS_RTR;
    must(ibv_modify_qp(qp_, &attr, IBV_QP_STATE), "RTR");
    attr.qp_state = IBV_QPS_RTS;
    must(ibv_modify_qp(qp_, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), "RTS");
    make_handle(*context, *pd, id->port_num);
  }

  /// To the own address, which is the victim's.
  void make_handle(ibv_context& context, ibv_pd& pd, std::uint8_t port) {
    ibv_ah_attr to{};
    to.is_global = 1;
    to.port_num = port;
    to.grh.hop_limit = 64;
    to.grh.dgid.raw[10] = to.grh.dgid.raw[11] = 0xff;
    std::memcpy(to.grh.dgid.raw + 12, &own_.sin_addr, 4);
    ibv_gid gid{};
    for (int index = 0; ibv_query_gid(&context, port, index, &gid) == 0; ++index) {
      if (std::memcmp(gid.raw, to.grh.dgid.raw, sizeof gid.raw) == 0)
        to.grh.sgid_index = static_cast<std::uint8_t>(index);
    }
    ah_ = must(ibv_create_ah(&pd, &to), "ibv_create_ah");
  }

  sockaddr_in victim_{}, own_{};
  int socket_ = -1;
  std::array<char, kMtu> memory_{};
  ibv_cq* cq_ = nullptr;
  ibv_mr* mr_ = nullptr;
  ibv_qp* qp_ = nullptr;
  ibv_ah* ah_ = nullptr;
  std::uint32_t number_ = 0;
};

std::string piece(std::uint32_t datagram, std::uint32_t total, std::uint32_t index, std::uint32_t bytes) {
  return big_endian(datagram, 4) + big_endian(total, 4) + big_endian(index, 2) + big_endian(bytes, 2);
}

void misbehave(Attacker& attacker) {
  const std::string text(500, 'x');
  const std::string own = attacker.own_header(0x44, 20);
  const std::vector<std::string> nonsense = {
      "",
      "x",
      "UUUU",
      attacker.own_header().substr(0, 7),
      attacker.own_header(5),
      attacker.own_header(4, 0),
      attacker.own_header(4, '\xff'),
      attacker.own_header(6, 24),
      attacker.own_header(0x44, 20),
      attacker.own_header(0x44, 8) + text,
      attacker.own_header(0x46, 36) + piece(1, 900, 0, 500) + text,
      attacker.header(0x0a070063, 9, 0x44, 20) + piece(1, 500, 0, 500) + text,  // of a stranger
      own + piece(1, 500, 0, 500) + text.substr(1),                             // shorter than it says
      own + piece(1, 900, 0, 400) + text,                                       // longer
      own + piece(1, 900, 2, 500) + text,
      own + piece(1, 900, 65535, 500) + text,
      own + piece(1, 0, 0, 500) + text,
      own + piece(1, 0xffffffff, 0, 500) + text,
      own + piece(1, 65480, 0, 500) + text,
      own + piece(1, 900, 0, 0),
      own + piece(1, 900, 0, 500) + text,
      own + piece(1, 900, 0, 500) + text,   // twice
      own + piece(1, 1400, 1, 500) + text,  // of another length than before
      std::string(kMtu, '\0'),
      std::string(kMtu, '\xff')};
  for (int round = 0; round < 3; ++round) {
    for (const std::string& bytes : nonsense) attacker.send(bytes);
    attacker.send(attacker.own_header() + text, kQkey + 1);
  }
  // Datagrams that will never be whole, and random bytes.
  for (std::uint32_t i = 0; i < kFlood; ++i) attacker.send(own + piece(100 + i, 60000, i % 100, 500) + text);
  std::mt19937 random(1);
  for (std::size_t i = 0; i < kFlood; ++i) {
    std::string bytes(random() % kMtu, '\0');
    for (char& one : bytes) one = static_cast<char>(random());
    if (i % 2 == 0) bytes = own + bytes.substr(0, 900);
    attacker.send(bytes);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: raw_datagrams ADDRESS PORT\n");
    return 2;
  }
  static Attacker attacker(argv[1], argv[2]);
  attacker.ask();
  say("known");
  misbehave(attacker);
  say("sent");
  // The kernel takes everything down.
  _exit(0);
}
