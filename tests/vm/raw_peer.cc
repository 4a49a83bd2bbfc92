// A peer of rsockets on raw verbs that breaks one rule, for the matrix of tests/vm: what does the other side do?
// Usage: raw_peer connect|listen ADDRESS PORT BEHAVIOUR
// Says "listening", then "connected" or "rejected", then "sent" when it has done its worst, then "gone" once the other
// side has ended the connection (or "still there" when it has not after 0.7 seconds). Exit status: 0; 1 with a line on
// standard error when a call failed that must not.
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr std::uint32_t kReceives = 384;
constexpr std::uint32_t kSends = 1024;
constexpr std::uint32_t kHalfRing = 65536;

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "raw_peer: %s: %s\n", what, std::strerror(errno));
  std::exit(1);
}

void must(int result, const char* what) {
  if (result != 0) fail(what);
}

void say(const char* word) {
  std::printf("%s\n", word);
  std::fflush(stdout);
}

/// What both sides tell each other in the connection request and reply; integers are big-endian.
struct __attribute__((packed)) Introduction {
  std::uint8_t version = 1;
  std::uint8_t flags = 2;
  std::uint16_t credits = htons(kReceives);
  std::uint8_t reserved[3] = {};
  std::uint8_t iomap_size = 0;
  std::uint64_t entries_address = 0;
  std::uint32_t entries_key = 0;
  std::uint32_t entry_count = htonl(2);
  std::uint64_t buffer_address = 0;
  std::uint32_t buffer_key = 0;
  std::uint32_t buffer_length = htonl(kHalfRing);
};
static_assert(sizeof(Introduction) == 40);

/// Where a side may write next, as it lies in the other side's memory.
struct Entry {
  std::uint64_t address;
  std::uint32_t key;
  std::uint32_t length;
};

struct Memory {
  std::array<Entry, 2> entries;
  std::array<std::uint32_t, kReceives> words;  ///< of iWARP
  std::array<char, 2 * kHalfRing> ring;
  std::array<char, 4096> outgoing;
};

std::uint64_t swapped(std::uint64_t value) { return __builtin_bswap64(value); }

class RawPeer {
 public:
  RawPeer() : channel_(rdma_create_event_channel()) {
    if (channel_ == nullptr) fail("rdma_create_event_channel");
  }

  bool connect(const char* host, const char* port, const std::string& behaviour);
  bool listen(const char* host, const char* port, const std::string& behaviour);
  void misbehave(const std::string& behaviour);
  void wait_for_end();

 private:
  void wait_for_first_message();
  void remind();
  void make_endpoint(bool by_hand);
  rdma_conn_param parameters(const std::string& behaviour);
  rdma_cm_event_type next_event(rdma_cm_id** id = nullptr);
  void expect(rdma_cm_event_type wanted);
  void remember_peer(const void* data);
  void post_word(std::uint32_t word, const Entry& place, std::uint32_t length);
  void post(ibv_send_wr& request);
  void announce(const std::array<Entry, 2>& entries);
  void send_data(std::uint32_t length, std::uint32_t claimed) { post_word(claimed, peer_buffer_, length); }

  rdma_event_channel* channel_;
  rdma_cm_id* id_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_mr* mr_ = nullptr;
  ibv_qp* hand_made_qp_ = nullptr;
  bool is_iwarp_ = false;
  Introduction mine_;
  Entry peer_buffer_{};
  Entry peer_entries_{};
  Memory memory_{};
};

rdma_cm_event_type RawPeer::next_event(rdma_cm_id** id) {
  rdma_cm_event* event = nullptr;
  must(rdma_get_cm_event(channel_, &event), "rdma_get_cm_event");
  if (id != nullptr) *id = event->id;
  if (event->param.conn.private_data != nullptr && event->param.conn.private_data_len >= sizeof(Introduction)) {
    remember_peer(event->param.conn.private_data);
  }
  const rdma_cm_event_type type = event->event;
  rdma_ack_cm_event(event);
  return type;
}

void RawPeer::expect(rdma_cm_event_type wanted) {
  const rdma_cm_event_type type = next_event();
  if (type == wanted) return;
  std::fprintf(stderr, "raw_peer: %s instead of %s\n", rdma_event_str(type), rdma_event_str(wanted));
  std::exit(1);
}

void RawPeer::remember_peer(const void* data) {
  Introduction theirs;
  std::memcpy(&theirs, data, sizeof theirs);
  peer_buffer_ = {swapped(theirs.buffer_address), ntohl(theirs.buffer_key), ntohl(theirs.buffer_length)};
  peer_entries_ = {swapped(theirs.entries_address), ntohl(theirs.entries_key), ntohl(theirs.entry_count)};
}

/// @param by_hand  a queue pair of which the connection manager knows nothing: the connection waits for
/// rdma_establish()
void RawPeer::make_endpoint(bool by_hand) {
  is_iwarp_ = id_->verbs->device->transport_type == IBV_TRANSPORT_IWARP;
  ibv_pd* pd = ibv_alloc_pd(id_->verbs);
  cq_ = ibv_create_cq(id_->verbs, kReceives + kSends, nullptr, nullptr, 0);
  mr_ = ibv_reg_mr(pd, &memory_, sizeof memory_, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  if (pd == nullptr || cq_ == nullptr || mr_ == nullptr) fail("verbs");
  ibv_qp_init_attr attributes{};
  attributes.send_cq = attributes.recv_cq = cq_;
  attributes.cap = {
      .max_send_wr = kSends, .max_recv_wr = kReceives, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 4};
  attributes.qp_type = IBV_QPT_RC;
  attributes.sq_sig_all = 1;
  if (by_hand) {
    hand_made_qp_ = ibv_create_qp(pd, &attributes);
    if (hand_made_qp_ == nullptr) fail("ibv_create_qp");
  } else {
    must(rdma_create_qp(id_, pd, &attributes), "rdma_create_qp");
    for (std::uint32_t& word : memory_.words) {
      ibv_sge place{reinterpret_cast<std::uintptr_t>(&word), sizeof word, mr_->lkey};
      ibv_recv_wr receive{.wr_id = 0, .next = nullptr, .sg_list = &place, .num_sge = 1};
      ibv_recv_wr* bad = nullptr;
      must(ibv_post_recv(id_->qp, &receive, &bad), "ibv_post_recv");
    }
  }
}

rdma_conn_param RawPeer::parameters(const std::string& behaviour) {
  mine_.entries_address = swapped(reinterpret_cast<std::uintptr_t>(memory_.entries.data()));
  mine_.buffer_address = swapped(reinterpret_cast<std::uintptr_t>(memory_.ring.data()));
  mine_.entries_key = mine_.buffer_key = htonl(mr_->rkey);
  rdma_conn_param parameters{};
  parameters.private_data = &mine_;
  parameters.private_data_len = sizeof mine_;
  parameters.retry_count = 7;
  parameters.rnr_retry_count = 7;
  if (hand_made_qp_ != nullptr) parameters.qp_num = hand_made_qp_->qp_num;
  if (behaviour == "version") mine_.version = 2;
  if (behaviour == "short") parameters.private_data_len = 9;
  if (behaviour == "nothing") parameters.private_data_len = 0;
  if (behaviour == "no-entries") mine_.entry_count = 0;
  if (behaviour == "no-credits") mine_.credits = 0;
  if (behaviour == "no-buffer") mine_.buffer_length = 0;
  if (behaviour == "huge-buffer") mine_.buffer_length = 0xffffffff;
  if (behaviour == "huge-entries") mine_.entry_count = 0xffffffff;
  if (behaviour == "huge-iomap") mine_.iomap_size = 0xff;
  if (behaviour == "wild-addresses") mine_.entries_address = mine_.buffer_address = swapped(0xfffffffffffffff0U);
  if (behaviour == "wrong-keys") mine_.entries_key = mine_.buffer_key = htonl(mr_->rkey ^ 0x00ffff00U);
  return parameters;
}

bool RawPeer::connect(const char* host, const char* port, const std::string& behaviour) {
  addrinfo* address = nullptr;
  if (getaddrinfo(host, port, nullptr, &address) != 0) fail("getaddrinfo");
  must(rdma_create_id(channel_, &id_, nullptr, RDMA_PS_TCP), "rdma_create_id");
  must(rdma_resolve_addr(id_, nullptr, address->ai_addr, 2000), "rdma_resolve_addr");
  expect(RDMA_CM_EVENT_ADDR_RESOLVED);
  must(rdma_resolve_route(id_, 2000), "rdma_resolve_route");
  expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
  freeaddrinfo(address);
  make_endpoint(behaviour == "no-rtu");
  rdma_conn_param how = parameters(behaviour);
  must(rdma_connect(id_, &how), "rdma_connect");
  const rdma_cm_event_type outcome = next_event();
  say(outcome == RDMA_CM_EVENT_ESTABLISHED || outcome == RDMA_CM_EVENT_CONNECT_RESPONSE ? "connected" : "rejected");
  return outcome == RDMA_CM_EVENT_ESTABLISHED || outcome == RDMA_CM_EVENT_CONNECT_RESPONSE;
}

bool RawPeer::listen(const char* host, const char* port, const std::string& behaviour) {
  addrinfo* address = nullptr;
  if (getaddrinfo(host, port, nullptr, &address) != 0) fail("getaddrinfo");
  rdma_cm_id* listener = nullptr;
  must(rdma_create_id(channel_, &listener, nullptr, RDMA_PS_TCP), "rdma_create_id");
  must(rdma_bind_addr(listener, address->ai_addr), "rdma_bind_addr");
  must(rdma_listen(listener, 8), "rdma_listen");
  freeaddrinfo(address);
  say("listening");
  if (next_event(&id_) != RDMA_CM_EVENT_CONNECT_REQUEST) fail("no connection request");
  make_endpoint(false);
  rdma_conn_param how = parameters(behaviour);
  if (behaviour == "no-reply") return true;
  must(rdma_accept(id_, &how), "rdma_accept");
  const rdma_cm_event_type outcome = next_event();
  say(outcome == RDMA_CM_EVENT_ESTABLISHED ? "connected" : "rejected");
  if (is_iwarp_ && outcome == RDMA_CM_EVENT_ESTABLISHED) wait_for_first_message();
  return outcome == RDMA_CM_EVENT_ESTABLISHED;
}

/// The one who accepts may not send before (RFC 5044, 7.1.2). Gives up after a second.
void RawPeer::wait_for_first_message() {
  ibv_wc completion{};
  for (int attempt = 0; attempt < 1000 && ibv_poll_cq(cq_, 1, &completion) == 0; ++attempt) usleep(1000);
}

void RawPeer::post(ibv_send_wr& request) {
  ibv_send_wr* bad = nullptr;
  must(ibv_post_send(id_->qp, &request, &bad), "ibv_post_send");
}

/// A message: `length` bytes written to `place`, then the word of 32 bits that tells of them.
void RawPeer::post_word(std::uint32_t word, const Entry& place, std::uint32_t length) {
  ibv_sge data{reinterpret_cast<std::uintptr_t>(memory_.outgoing.data()), length, mr_->lkey};
  ibv_send_wr write{};
  write.sg_list = &data;
  write.num_sge = length == 0 ? 0 : 1;
  write.wr.rdma = {.remote_addr = place.address, .rkey = place.key};
  if (!is_iwarp_) {
    write.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    write.imm_data = htonl(word);
    post(write);
    return;
  }
  write.opcode = IBV_WR_RDMA_WRITE;
  if (length != 0) post(write);
  ibv_sge inline_word{reinterpret_cast<std::uintptr_t>(&word), sizeof word, 0};
  ibv_send_wr send{};
  send.opcode = IBV_WR_SEND;
  send.send_flags = IBV_SEND_INLINE;
  send.sg_list = &inline_word;
  send.num_sge = 1;
  post(send);
}

void RawPeer::announce(const std::array<Entry, 2>& entries) {
  std::memcpy(memory_.outgoing.data(), entries.data(), sizeof entries);
  post_word(0x80000200, peer_entries_, sizeof entries);
}

void RawPeer::misbehave(const std::string& behaviour) {
  if (behaviour == "no-rtu" || behaviour == "no-reply") return;
  if (behaviour == "overrun") {
    // More messages than the other side has receives and credits, of one byte each.
    for (int i = 0; i < 200; ++i) send_data(1, 1);
    for (int i = 0; i < 200; ++i) post_word(1, {}, 0);
  } else if (behaviour == "beyond-ring") {
    post_word(0x1fffffff, {}, 0);
    post_word(0x1fffffff, {}, 0);
  } else if (behaviour == "write-outside") {
    send_data(0, 0);
    post_word(16, {peer_buffer_.address + (1ULL << 40), peer_buffer_.key, 0}, 16);
  } else if (behaviour == "empty-message") {
    post_word(0, {}, 0);
  } else if (behaviour == "reserved-words") {
    for (const std::uint32_t word : {0x20000001U, 0x40000001U, 0x60000001U, 0xa0000001U, 0xe0000007U, 0xffffffffU}) {
      post_word(word, {}, 0);
    }
  } else if (behaviour == "iomap-index") {
    post_word(0xc000ffff, {}, 0);
    post_word(0xdfffffff, {}, 0);
  } else if (behaviour == "wild-credits") {
    for (const std::uint32_t limit : {0U, 0xffffU, 0x8000U, 0x7fffU}) post_word(0x80000000U | limit, {}, 0);
  } else if (behaviour == "wild-entries") {
    const std::array<Entry, 2> nonsense{{{0, 0, 0xffffffff}, {0xfffffffffffffff0U, 0xdeadbeef, 0xffffffff}}};
    announce(nonsense);
  } else if (behaviour == "wrong-entry-keys") {
    const Entry entry{reinterpret_cast<std::uintptr_t>(memory_.ring.data()), mr_->rkey ^ 0x00ffff00U, kHalfRing};
    announce({entry, entry});
  } else if (behaviour == "hello") {
    std::memcpy(memory_.outgoing.data(), "hello", 5);
    send_data(5, 5);
    post_word(0xe0000000, {}, 0);
  }
  say("sent");
}

/// Something that means nothing. siw, which has just answered us, may not have noticed what came until then.
void RawPeer::remind() {
  ibv_send_wr write{};
  write.opcode = IBV_WR_RDMA_WRITE;
  write.wr.rdma = {.remote_addr = peer_entries_.address, .rkey = peer_entries_.key};
  ibv_send_wr* bad = nullptr;
  (void)ibv_post_send(id_->qp, &write, &bad);  // the connection may be gone
}

/// Until the other side disconnects; messages that it sends in the meantime are taken.
void RawPeer::wait_for_end() {
  pollfd waiting{channel_->fd, POLLIN, 0};
  if (is_iwarp_ && poll(&waiting, 1, 100) == 0) remind();
  while (poll(&waiting, 1, 700) > 0) {
    const rdma_cm_event_type type = next_event();
    if (type == RDMA_CM_EVENT_DISCONNECTED || type == RDMA_CM_EVENT_CONNECT_ERROR ||
        type == RDMA_CM_EVENT_UNREACHABLE) {
      say("gone");
      return;
    }
  }
  say("still there");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: raw_peer connect|listen ADDRESS PORT BEHAVIOUR\n");
    return 2;
  }
  static RawPeer peer;
  const std::string behaviour = argv[4];
  const bool connects = std::strcmp(argv[1], "connect") == 0;
  if (connects ? peer.connect(argv[2], argv[3], behaviour) : peer.listen(argv[2], argv[3], behaviour)) {
    peer.misbehave(behaviour);
    peer.wait_for_end();
  }
  // The kernel takes everything down: the other side sees a process that died.
  _exit(0);
}
