#include "librsocket/connection.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "core/base/log.h"
#include "core/runtime/fork_registry.h"

namespace ringsock::rs {

namespace {

// What a completion's wr_id says: the number of data work requests that it retires, or one of these.
constexpr std::uint64_t kReceiveId = std::uint64_t{1} << 32;
constexpr std::uint64_t kControlId = std::uint64_t{1} << 33;

/// A message longer than this is sent in pieces, so that the reader copies one while the writer copies the next.
constexpr std::uint32_t kPieceBytes = 16 * 1024;

constexpr std::uint32_t kRingAlignment = 64;

/// Inline data that costs nothing extra is taken to the full; on a real device each byte makes the queue's entries
/// longer.
std::uint32_t inline_request(const verbs::Device& device, const QueueSettings& settings) {
  constexpr std::uint32_t kUnlimited = 64 * 1024;
  if (device.max_inline_data() >= kUnlimited) return device.max_inline_data();
  return std::min(settings.inline_bytes, device.max_inline_data());
}

std::uint32_t word_in_network_order(std::uint32_t word) { return std::bit_cast<std::uint32_t>(wire::Be32(word)); }

std::uint64_t address_of(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

}  // namespace

Result<std::unique_ptr<Connection>> Connection::create(verbs::ConnectionId& id, const QueueSettings& settings) {
  std::unique_ptr<Connection> connection(new Connection(id.device(), settings));
  if (Status made = connection->make_resources(id); !made) return made.error();
  return connection;
}

Connection::Connection(verbs::Device& device, const QueueSettings& settings)
    : device_(device), settings_(settings), receive_window_(settings.receive_ring, settings.receive_queue) {}

std::size_t Connection::ring_offset() const {
  const std::size_t tables = kSglBytes + settings_.iomap_entries * sizeof(wire::PeerIomap);
  return (tables + kRingAlignment - 1) / kRingAlignment * kRingAlignment;
}

Status Connection::make_resources(verbs::ConnectionId& id) {
  auto pd = device_.alloc_pd();
  if (!pd) return pd.error();
  pd_ = *std::move(pd);
  if (!device_.wakes_through_connection()) {
    auto channel = device_.create_comp_channel();
    if (!channel) return channel.error();
    channel_ = *std::move(channel);
  }
  const unsigned receives = settings_.receive_queue + kControlReceives;
  auto cq = device_.create_cq(static_cast<int>(settings_.send_queue + receives), this, channel_.get(), 0);
  if (!cq) return cq.error();
  cq_ = *std::move(cq);

  ibv_qp_init_attr attr{};
  attr.send_cq = attr.recv_cq = cq_.get();
  attr.qp_type = IBV_QPT_RC;
  attr.cap.max_send_wr = settings_.send_queue;
  attr.cap.max_recv_wr = receives;
  attr.cap.max_send_sge = 16;
  attr.cap.max_recv_sge = 1;
  attr.cap.max_inline_data = inline_request(device_, settings_);
  auto qp = id.create_qp(*pd_, attr, ring_offset() + settings_.receive_ring);
  if (!qp) return qp.error();
  memory_ = *std::move(qp);

  max_inline_ = attr.cap.max_inline_data;
  settings_.inline_bytes = std::min<std::uint32_t>(attr.cap.max_inline_data, INT32_MAX);
  gather_.resize(std::max(1u, attr.cap.max_send_sge));
  signal_every_ = std::max(1u, (settings_.send_queue - kControlSlots) / 4);
  own_iomap_.resize(settings_.iomap_entries);
  link_receive_requests();
  for (unsigned left = receives; left > 0;) {
    const unsigned batch = std::min<unsigned>(left, static_cast<unsigned>(receive_requests_.size()));
    if (Status posted = post_receives(batch); !posted) return posted;
    left -= batch;
  }
  return ok();
}

wire::RsConnect Connection::connect_data() const {
  const auto& memory = memory_.receive_memory;
  const std::uint32_t key = memory_.receive_mr->rkey;
  wire::RsConnect data{};
  data.version = wire::kRsVersion;
  data.flags = wire::kRsLocalOrderFlag | wire::kRsHasIomap;
  data.credits = wire::Be16(settings_.receive_queue);
  data.iomap_size_scaled = wire::encode_iomap_size(settings_.iomap_entries);
  data.target_sgl = {wire::Be64(address_of(memory.data())), wire::Be32(key), wire::Be32(kSglEntries)};
  data.first_buffer = {wire::Be64(address_of(ring())), wire::Be32(key), wire::Be32(receive_window_.half())};
  return data;
}

Status Connection::start(const wire::RsConnect& peer) {
  peer_sgl_entries_ = peer.target_sgl.length.host();
  if (peer_sgl_entries_ == 0) return Error{EPROTO, "rsocket: the peer has no table for buffers"};
  peer_sgl_address_ = peer.target_sgl.addr.host();
  peer_sgl_key_ = peer.target_sgl.key.host();
  peer_sgl_next_ = 1 % peer_sgl_entries_;
  peer_iomap_entries_ = (peer.flags & wire::kRsHasIomap) != 0 ? wire::decode_iomap_size(peer.iomap_size_scaled) : 0;
  swap_for_peer_ = (peer.flags & wire::kRsBigEndianHost) != wire::kRsLocalOrderFlag;
  send_window_.reset({peer.first_buffer.addr.host(), peer.first_buffer.key.host(), peer.first_buffer.length.host()},
                     peer.credits.host());

  data_request_.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  data_request_.sg_list = gather_.data();
  return ok();
}

// -- sending
// -----------------------------------------------------------------------------------------------------------

std::size_t Connection::send(IoCursor& data) {
  std::size_t sent = 0;
  if (suspended_.load(std::memory_order_relaxed)) [[unlikely]]
    return 0;
  while (!data.done() && can_send()) {
    // Gather the next message without passing the end of the peer's buffer.
    const std::uint32_t limit = std::min({send_window_.room(), kPieceBytes, max_inline_});
    std::uint32_t length = 0;
    std::size_t parts = 0;
    while (parts < gather_.size() && length < limit && !data.done()) {
      const auto piece = data.piece();
      const auto step = static_cast<std::uint32_t>(std::min<std::size_t>(piece.size(), limit - length));
      gather_[parts++] = {address_of(piece.data()), step, 0};
      length += step;
      data.advance(step);
    }
    const auto placement = send_window_.take(length);
    ibv_send_wr& request = data_request_;
    request.num_sge = static_cast<int>(parts);
    request.imm_data = word_in_network_order(wire::encode_rs_message({wire::RsOpcode::data, length}));
    request.wr.rdma.remote_addr = placement.addr;
    request.wr.rdma.rkey = placement.key;
    request.send_flags = IBV_SEND_INLINE;
    if (++unsignalled_ >= signal_every_) {
      request.send_flags |= IBV_SEND_SIGNALED;
      request.wr_id = std::exchange(unsignalled_, 0u);
    }
    count_posted();
    ibv_send_wr* bad = nullptr;
    if (const int error = ibv_post_send(memory_.qp.get(), &request, &bad); error != 0) {
      log_debug("ibv_post_send: error %d", error);
      fail(ECONNRESET);
      break;
    }
    sent += length;
  }
  return sent;
}

std::size_t Connection::write_direct(const std::byte* data, std::size_t size, std::uint64_t remote_address,
                                     std::uint32_t key) {
  std::size_t written = 0;
  if (suspended_.load(std::memory_order_relaxed)) return 0;
  while (written < size && data_slots() > 0) {
    const auto length = static_cast<std::uint32_t>(std::min<std::size_t>(size - written, max_inline_));
    ibv_sge piece{address_of(data + written), length, 0};
    ibv_send_wr request{};
    request.opcode = IBV_WR_RDMA_WRITE;
    request.sg_list = &piece;
    request.num_sge = 1;
    request.wr.rdma.remote_addr = remote_address + written;
    request.wr.rdma.rkey = key;
    // Signalled each: a refused write must be noticed although no message follows.
    request.send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED;
    request.wr_id = 1u + std::exchange(unsignalled_, 0u);
    count_posted();
    ibv_send_wr* bad = nullptr;
    if (const int error = ibv_post_send(memory_.qp.get(), &request, &bad); error != 0) {
      fail(ECONNRESET);
      break;
    }
    written += length;
  }
  return written;
}

// -- reading
// -----------------------------------------------------------------------------------------------------------

std::size_t Connection::receive(IoCursor& out, bool peek) {
  std::size_t copied = 0;
  if (suspended_.load(std::memory_order_relaxed)) [[unlikely]]
    return 0;
  while (!out.done()) {
    const auto span = receive_window_.peek(peek ? copied : 0);
    if (span.length == 0) break;
    const std::size_t step = out.fill_from(ring() + span.offset, span.length);
    copied += step;
    if (!peek) receive_window_.consume(step);
  }
  return copied;
}

void Connection::announce_if_due() {
  if (suspended_.load(std::memory_order_relaxed)) [[unlikely]]
    return;
  while (const auto due = receive_window_.due()) {
    if (failure() != 0 || peer_disconnected()) return;
    if (!take_control_slot()) return;  // due() stays true
    // Counted before it is sent: another thread may poll the peer's answer to it before this one goes on.
    receive_window_.announced(*due);
    ibv_send_wr request{};
    ibv_sge piece{};
    wire::PeerSge entry{};
    request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    request.imm_data = word_in_network_order(wire::encode_rs_message({wire::RsOpcode::sgl, due->limit}));
    if (due->has_buffer) {
      entry = {address_of(ring() + due->offset), memory_.receive_mr->rkey, due->length};
      if (swap_for_peer_) entry = wire::swap_bytes(entry);
      piece = {address_of(&entry), sizeof entry, 0};
      request.sg_list = &piece;
      request.num_sge = 1;
      request.wr.rdma.remote_addr = peer_sgl_address_ + sizeof entry * peer_sgl_next_;
      request.wr.rdma.rkey = peer_sgl_key_;
    }
    if (due->has_buffer) peer_sgl_next_ = (peer_sgl_next_ + 1) % peer_sgl_entries_;
    if (Status posted = post_in_control_slot(request); !posted) return;
  }
}

// -- control
// -----------------------------------------------------------------------------------------------------------

bool Connection::take_control_slot() {
  if (free_control_slots_.fetch_sub(1, std::memory_order_relaxed) > 0) return true;
  free_control_slots_.fetch_add(1, std::memory_order_relaxed);
  return false;
}

Status Connection::post_control(ibv_send_wr& request) {
  if (!take_control_slot()) return Error{EAGAIN, "rsocket: no control slot"};
  return post_in_control_slot(request);
}

Status Connection::post_in_control_slot(ibv_send_wr& request) {
  request.wr_id = kControlId;
  request.send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  if (const int error = ibv_post_send(memory_.qp.get(), &request, &bad); error != 0) {
    fail(ECONNRESET);
    return Error{ECONNRESET, "ibv_post_send"};
  }
  return ok();
}

Status Connection::send_control(wire::RsControl control) {
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request.imm_data =
      word_in_network_order(wire::encode_rs_message({wire::RsOpcode::ctrl, static_cast<std::uint32_t>(control)}));
  return post_control(request);
}

Status Connection::send_keepalive() {
  // The lock keeps fork(2) out.
  const std::lock_guard guard(poll_lock_);
  if (suspended_.load(std::memory_order_relaxed)) return ok();
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_WRITE;
  return post_control(request);
}

Status Connection::send_iomap(std::uint32_t index, const wire::PeerIomap& entry) {
  wire::PeerIomap ordered = swap_for_peer_ ? wire::swap_bytes(entry) : entry;
  ibv_sge piece{address_of(&ordered), sizeof ordered, 0};
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request.imm_data = word_in_network_order(wire::encode_rs_message({wire::RsOpcode::iomap_sgl, index}));
  request.sg_list = &piece;
  request.num_sge = 1;
  request.wr.rdma.remote_addr =
      peer_sgl_address_ + sizeof(wire::PeerSge) * peer_sgl_entries_ + sizeof ordered * std::uint64_t{index};
  request.wr.rdma.rkey = peer_sgl_key_;
  return post_control(request);
}

void Connection::add_fork_locks(runtime::ForkLocks& locks) { locks.add_biased(2, poll_lock_); }

// -- completions
// -------------------------------------------------------------------------------------------------------

void Connection::link_receive_requests() {
  constexpr std::size_t kBatch = 32;
  receive_requests_.resize(kBatch);
  for (std::size_t i = 0; i < kBatch; ++i) {
    receive_requests_[i] = {};
    receive_requests_[i].wr_id = kReceiveId;
    receive_requests_[i].next = i + 1 < kBatch ? &receive_requests_[i + 1] : nullptr;
  }
}

Status Connection::post_receives(unsigned count) {
  // The requests carry no buffer, so one linked list serves every time: start so that `count` are left to its end.
  ibv_recv_wr* first = &receive_requests_[receive_requests_.size() - count];
  ibv_recv_wr* bad = nullptr;
  if (const int error = ibv_post_recv(memory_.qp.get(), first, &bad); error != 0) return Error{error, "ibv_post_recv"};
  return ok();
}

bool Connection::poll() {
  constexpr int kBatch = 32;
  ibv_wc completions[kBatch];
  bool changed = false;
  std::lock_guard guard(poll_lock_);
  if (suspended_.load(std::memory_order_relaxed)) [[unlikely]]
    return false;
  for (;;) {
    const int count = ibv_poll_cq(cq_.get(), kBatch, completions);
    if (count < 0) {
      fail(EIO);
      return true;
    }
    if (count == 0) return changed;
    unsigned receives = 0;
    for (int i = 0; i < count; ++i) changed |= handle(completions[i], receives);
    if (receives > 0) {
      if (Status posted = post_receives(receives); !posted && !closing_.load(std::memory_order_relaxed))
        fail(ECONNRESET);
    }
    if (count < kBatch) return changed;
  }
}

bool Connection::handle(const ibv_wc& completion, unsigned& receives) {
  if (completion.status == IBV_WC_SUCCESS) {
    if (completion.wr_id == kReceiveId) {
      ++receives;
      return handle_message(completion);
    }
    if (completion.wr_id == kControlId) {
      free_control_slots_.fetch_add(1, std::memory_order_release);
    } else {
      retired_.store(retired_.load(std::memory_order_relaxed) + static_cast<std::uint32_t>(completion.wr_id),
                     std::memory_order_release);
    }
    return true;
  }
  if (completion.wr_id == kControlId) free_control_slots_.fetch_add(1, std::memory_order_release);
  if (closing_.load(std::memory_order_relaxed) || peer_disconnected()) return true;
  if (completion.vendor_err == verbs::kVendorErrPeerEnded) {
    // As TCP: the kernel ends a process's connections in order.
    peer_disconnected_.store(true, std::memory_order_release);
    return true;
  }
  const bool refused = completion.status == IBV_WC_REM_ACCESS_ERR || completion.status == IBV_WC_REM_INV_REQ_ERR ||
                       completion.status == IBV_WC_REM_OP_ERR || completion.status == IBV_WC_LOC_PROT_ERR;
  fail(refused ? EIO : ECONNRESET);
  return true;
}

bool Connection::handle_message(const ibv_wc& completion) {
  const auto message = wire::decode_rs_message(std::bit_cast<wire::Be32>(completion.imm_data).host());
  switch (message.opcode) {
    case wire::RsOpcode::sgl:
      send_window_.set_limit(message.value);
      take_announced_buffer();
      return true;
    case wire::RsOpcode::iomap_sgl: take_iomap_entry(message.value); return true;
    case wire::RsOpcode::ctrl:
      if (message.value == static_cast<std::uint32_t>(wire::RsControl::disconnect)) {
        peer_disconnected_.store(true, std::memory_order_release);
      }
      if (message.value == static_cast<std::uint32_t>(wire::RsControl::shutdown)) {
        peer_shut_down_.store(true, std::memory_order_release);
      }
      return true;
    case wire::RsOpcode::write: return false;
    case wire::RsOpcode::data: break;
  }
  // 1, 3 and 5 are data too, as upstream reads them.
  if (Status counted = receive_window_.arrived(message.value); !counted) {
    log_info("%s", counted.error().where);
    fail(ECONNRESET);
  }
  return true;
}

void Connection::take_announced_buffer() {
  // The peer may write here at any time: read the length once, then take the entry out.
  std::byte* slot = memory_.receive_memory.data() + own_sgl_next_ * sizeof(wire::PeerSge);
  std::atomic_ref length(reinterpret_cast<wire::PeerSge*>(slot)->length);
  if (length.load(std::memory_order_acquire) == 0) return;  // credits only
  wire::PeerSge entry;
  std::memcpy(&entry, slot, sizeof entry);
  length.store(0, std::memory_order_relaxed);
  if (entry.length == 0) return;
  if (Status added = send_window_.add_buffer(entry); !added) {
    log_info("%s", added.error().where);
    fail(ECONNRESET);
    return;
  }
  own_sgl_next_ = (own_sgl_next_ + 1) % kSglEntries;
}

void Connection::take_iomap_entry(std::uint32_t index) {
  if (index >= own_iomap_.size()) return;  // nothing of ours: ignored like an unknown control value
  std::memcpy(&own_iomap_[index], memory_.receive_memory.data() + kSglBytes + index * sizeof(wire::PeerIomap),
              sizeof(wire::PeerIomap));
}

std::optional<wire::PeerIomap> Connection::find_iomap(std::uint64_t offset) {
  std::lock_guard guard(poll_lock_);
  for (const wire::PeerIomap& entry : own_iomap_) {
    if (offset >= entry.offset && offset - entry.offset < entry.sge.length) return entry;
  }
  return std::nullopt;
}

int Connection::arm() {
  // The lock keeps fork(2) out.
  const std::lock_guard guard(poll_lock_);
  if (suspended_.load(std::memory_order_relaxed)) return -1;
  // A failure means that the queue pair is beyond sending completions; the caller's last look finds that.
  ibv_req_notify_cq(cq_.get(), 0);
  return channel_ ? channel_->fd : -1;
}

void Connection::woken() {
  if (!channel_) return;
  while (auto cq = device_.get_cq_event(*channel_)) device_.ack_cq_events(**cq, 1);
}

void Connection::fail(int error) {
  int none = 0;
  failure_.compare_exchange_strong(none, error, std::memory_order_acq_rel);
}

}  // namespace ringsock::rs
