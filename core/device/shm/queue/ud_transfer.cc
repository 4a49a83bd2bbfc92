// Datagrams of a UD queue pair: sending, and receiving into posted receives.
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <string>

#include "core/base/clock.h"
#include "core/base/passing.h"
#include "core/base/refusals.h"
#include "core/device/common/device_context.h"
#include "core/device/common/scatter_gather.h"
#include "core/device/shm/names/port_name.h"
#include "core/device/shm/names/port_owner.h"
#include "core/device/shm/queue/queue_limits.h"
#include "core/device/shm/queue/ud_queue_pair.h"
#include "core/verbs/ud_extensions.h"

namespace ringsock::soft {

namespace {

constexpr std::size_t kGrhBytes = sizeof(ibv_grh);
static_assert(kGrhBytes == 40);

AbstractAddress name_of(std::uint32_t qp_num) { return AbstractAddress("ringsock1/ud/" + std::to_string(qp_num)); }

/// Returns a random number from the upper half of the 24-bit numbers, because RC queue pairs count up from 2.
std::uint32_t random_qp_num() {
  std::uint32_t number = 0;
  while (::getrandom(&number, sizeof number, 0) != sizeof number) {
  }
  return (number & 0x7fffff) | 0x800000;
}

/// Checks the sender's user, which the kernel reports.
bool is_trusted(msghdr& message) {
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_CREDENTIALS) continue;
    ucred sender{};
    std::memcpy(&sender, CMSG_DATA(header), sizeof sender);
    return sender.uid == 0 || is_own_uid(sender.uid);
  }
  return false;
}

ibv_grh grh_for(const ParsedDatagram& datagram) {
  constexpr std::uint8_t kIbaNextHeader = 0x1b;
  ibv_grh out{};
  out.version_tclass_flow = htonl(6U << 28);
  out.paylen = htons(static_cast<std::uint16_t>(datagram.payload.size()));
  out.next_hdr = kIbaNextHeader;
  out.hop_limit = 1;
  // Both ends are this host.
  std::memcpy(out.sgid.raw, datagram.header.destination_gid, sizeof out.sgid.raw);
  std::memcpy(out.dgid.raw, datagram.header.destination_gid, sizeof out.dgid.raw);
  return out;
}

/// Returns whether a queue pair in that state receives.
bool hears(ibv_qp_state state) {
  return state == IBV_QPS_RTR || state == IBV_QPS_RTS || state == IBV_QPS_SQD || state == IBV_QPS_SQE;
}

}  // namespace

Status UdQueuePair::open_socket() {
  socket_ = out_of_the_way(UniqueFd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)));
  if (!socket_) return Error::last("create_qp: socket");
  const int on = 1;
  if (::setsockopt(socket_.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0) {
    return Error::last("create_qp: SO_PASSCRED");
  }
  for (;;) {
    qp_num = handle = random_qp_num();
    const AbstractAddress name = name_of(qp_num);
    if (::bind(socket_.get(), name.get(), name.length) == 0) return ok();
    if (errno != EADDRINUSE) return Error::last("create_qp: bind");
  }
}

int UdQueuePair::post_send(ibv_send_wr* wr, ibv_send_wr** bad) {
  std::lock_guard guard(gate_->lock);
  for (; wr != nullptr; wr = wr->next) {
    if (const int error = post_one(*wr); error != 0) {
      *bad = wr;
      return error;
    }
  }
  return 0;
}

int UdQueuePair::post_one(const ibv_send_wr& wr) {
  const bool is_send = wr.opcode == IBV_WR_SEND || wr.opcode == IBV_WR_SEND_WITH_IMM;
  if (!is_send || wr.num_sge < 0 || static_cast<std::uint32_t>(wr.num_sge) > init_attr_.cap.max_send_sge) return EINVAL;
  switch (state) {
    case IBV_QPS_RTS: break;
    case IBV_QPS_SQE:
    case IBV_QPS_ERR: complete(wr, IBV_WC_WR_FLUSH_ERR, 0); return 0;
    default: return EINVAL;
  }
  if (wr.wr.ud.ah == nullptr) return EINVAL;
  std::uint32_t undelivered = 0;
  const ibv_wc_status status = send(wr, undelivered);
  complete(wr, status, undelivered);
  if (status != IBV_WC_SUCCESS) state = IBV_QPS_SQE;
  return 0;
}

bool UdQueuePair::may_read(const ibv_send_wr& wr) const {
  if ((wr.send_flags & IBV_SEND_INLINE) != 0) return true;
  for (const ibv_sge& sge : sges_of(wr)) {
    if (!device_.keys().covers(sge.lkey, ibv_qp::pd, sge.addr, sge.length, 0)) return false;
  }
  return true;
}

/// @param undelivered  becomes the reason when the datagram is lost here
ibv_wc_status UdQueuePair::send(const ibv_send_wr& wr, std::uint32_t& undelivered) {
  constexpr std::uint32_t kUseOwnQkey = 1U << 31;  // a privileged qkey in a request stands for the queue pair's
  if (length_of(sges_of(wr)) > kMaxDatagramBytes) return IBV_WC_LOC_LEN_ERR;
  if (!may_read(wr)) return IBV_WC_LOC_PROT_ERR;
  DatagramHeader header{};
  header.version = kDatagramVersion;
  header.source_qpn = qp_num;
  header.qkey = (wr.wr.ud.remote_qkey & kUseOwnQkey) != 0 ? attr_.qkey : wr.wr.ud.remote_qkey;
  if ((wr.send_flags & IBV_SEND_SOLICITED) != 0) header.flags |= kDatagramSolicited;
  if (wr.opcode == IBV_WR_SEND_WITH_IMM) {
    header.flags |= kDatagramHasImm;
    header.imm_data = wr.imm_data;
  }
  const ibv_ah_attr& to = static_cast<const AddressHandle*>(wr.wr.ud.ah)->attributes;
  if (to.is_global != 0) {
    header.flags |= kDatagramIsGlobal;
    std::memcpy(header.destination_gid, to.grh.dgid.raw, sizeof header.destination_gid);
  }
  if (uses_rings_ && send_by_ring(wr, header, undelivered)) return IBV_WC_SUCCESS;
  return send_by_socket(wr, header, undelivered);
}

/// Returns false when there is no ring to the receiver, or no longer one.
bool UdQueuePair::send_by_ring(const ibv_send_wr& wr, const DatagramHeader& header, std::uint32_t& undelivered) {
  const std::uint32_t number = wr.wr.ud.remote_qpn;
  UdRoutes::Route* const route = routes_.find(number);
  if (route == nullptr) return false;
  std::array<iovec, kMaxSendSge> parts;
  std::size_t count = 0;
  for (const ibv_sge& sge : sges_of(wr)) parts[count++] = {reinterpret_cast<void*>(sge.addr), sge.length};
  const auto put = is_there(*route, number)
                       ? route->ring.put(header, std::span(parts).first(count), length_of(sges_of(wr)))
                       : UdRingWriter::Put::closed;
  if (put == UdRingWriter::Put::closed) {
    routes_.drop(number);  // the receiver may live on, with too many rings: its socket tells
    return false;
  }
  // A ring that is full loses the datagram, as a full receive buffer does.
  if (put == UdRingWriter::Put::done && route->ring.must_ring() &&
      send_note(number, kDatagramBell, -1) == ECONNREFUSED) {
    undelivered = verbs::kVendorErrNobody;
    routes_.drop(number);
  }
  return true;
}

/// A process that was killed closes nothing, so its number is looked for now and then. What it has taken meanwhile
/// proves nothing: another process may have its port a few milliseconds later, and a forked child has it at once. One
/// that sleeps is rung anyway, and where nobody goes on with its port the bell finds that out early enough.
bool UdQueuePair::is_there(UdRoutes::Route& route, std::uint32_t number) {
  constexpr std::uint64_t kPatience = 1'000'000;  // ticks(): less than half a millisecond
  const std::uint64_t since = ticks() - route.looked_at;
  if (route.ring.is_sole() && (since < kPatience || route.ring.is_armed())) return true;
  route.looked_at += since;
  return !is_gone(number);
}

/// Returns whether no queue pair has the number. Connecting tells it, and sends nothing.
bool UdQueuePair::is_gone(std::uint32_t number) {
  const int saved_errno = errno;
  if (!probe_) probe_ = out_of_the_way(UniqueFd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)));
  const AbstractAddress name = name_of(number);
  const bool is = probe_ && ::connect(probe_.get(), name.get(), name.length) != 0 && errno == ECONNREFUSED;
  errno = saved_errno;
  return is;
}

bool UdQueuePair::open_ring(std::uint32_t number) {
  std::lock_guard guard(gate_->lock);
  if (!uses_rings_ || routes_.find(number) != nullptr) return false;
  const auto memory = routes_.add(number);
  if (!memory) return false;
  if (send_note(number, kDatagramRing, memory->get()) == 0) return true;
  routes_.drop(number);
  return false;
}

/// Sends a datagram that is not for the program. Returns 0 or an errno value.
/// @param memory  passed with it, -1: none
int UdQueuePair::send_note(std::uint32_t number, std::uint16_t flag, int memory) {
  DatagramHeader header{};
  header.version = kDatagramVersion;
  header.flags = flag;
  header.qkey = attr_.qkey;
  header.source_qpn = qp_num;
  iovec part{&header, sizeof header};
  AbstractAddress name = name_of(number);
  msghdr message{};
  message.msg_name = &name.address;
  message.msg_namelen = name.length;
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  PassingRoom room;
  if (memory >= 0) pass_with(message, room, memory);
  const int saved_errno = errno;
  const int error = ::sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? errno : 0;
  errno = saved_errno;
  return error;
}

ibv_wc_status UdQueuePair::send_by_socket(const ibv_send_wr& wr, const DatagramHeader& header,
                                          std::uint32_t& undelivered) {
  std::array<iovec, 1 + kMaxSendSge> parts;
  std::size_t count = 0;
  parts[count++] = {const_cast<DatagramHeader*>(&header), sizeof header};
  for (const ibv_sge& sge : sges_of(wr)) parts[count++] = {reinterpret_cast<void*>(sge.addr), sge.length};
  AbstractAddress name = name_of(wr.wr.ud.remote_qpn);
  msghdr message{};
  message.msg_name = &name.address;
  message.msg_namelen = name.length;
  message.msg_iov = parts.data();
  message.msg_iovlen = count;
  const int saved_errno = errno;
  const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  const bool bad_memory = sent < 0 && errno == EFAULT;
  if (sent < 0) undelivered = errno == ECONNREFUSED ? verbs::kVendorErrNobody : verbs::kVendorErrFull;
  errno = saved_errno;
  // For any other obstacle the datagram is lost, as datagrams may be.
  return bad_memory ? IBV_WC_LOC_PROT_ERR : IBV_WC_SUCCESS;
}

void UdQueuePair::complete(const ibv_send_wr& wr, ibv_wc_status status, std::uint32_t undelivered) {
  const bool signaled = init_attr_.sq_sig_all != 0 || (wr.send_flags & IBV_SEND_SIGNALED) != 0;
  if (!signaled && status == IBV_WC_SUCCESS) return;
  ibv_wc wc{};
  wc.wr_id = wr.wr_id;
  wc.status = status;
  wc.vendor_err = undelivered;
  wc.opcode = IBV_WC_SEND;
  wc.qp_num = qp_num;
  send_queue().push(wc);
}

/// With rings the socket is read when somebody may be waiting for what is in it, and now and then.
void UdQueuePair::receive_pending(int limit) {
  constexpr unsigned kPollsPerLook = 64;
  const bool is_time = incoming_.empty() || looks_closely_ || ++polls_ % kPollsPerLook == 0;
  receive_from_rings(limit);
  if (!is_time) return;
  looks_closely_ = false;
  receive_from_socket(limit);
  if (completed_.empty()) receive_from_rings(limit);
}

void UdQueuePair::receive_from_rings(int limit) {
  if (incoming_.empty() || !hears(state)) return;
  incoming_.take(limit, [this](const ParsedDatagram& datagram) {
    if (datagram.header.qkey == attr_.qkey) receive(datagram);
  });
}

/// The memory of a ring, from a process of our own user. A bell needs nothing: the caller looks at the rings.
void UdQueuePair::take_note(const DatagramHeader& header, PassedFd memory) {
  if (!uses_rings_ || (header.flags & kDatagramRing) == 0 || !memory) return;
  incoming_.reap([this](std::uint32_t source) { return is_gone(source); });
  if (!incoming_.add(std::move(memory).take(), header.source_qpn)) return count_refusal(Refusal::descriptor);
  if (receive_queue().is_armed()) incoming_.arm();
}

void UdQueuePair::receive_from_socket(int limit) {
  const int saved_errno = errno;
  for (; limit > 0; --limit) {
    // One byte more than the largest datagram, to detect longer ones.
    std::array<std::byte, sizeof(DatagramHeader) + kMaxDatagramBytes + 1> bytes;
    // With rings there is room for one descriptor. The kernel closes others that a sender might pass.
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(ucred)) + CMSG_SPACE(sizeof(int))> control;
    iovec part{bytes.data(), bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = uses_rings_ ? control.size() : CMSG_SPACE(sizeof(ucred));
    const ssize_t got = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0) break;
    PassedFd memory = passed_with(message);
    if (!hears(state) || !is_trusted(message)) continue;
    const auto datagram = parse_datagram(std::span(bytes).first(static_cast<std::size_t>(got)));
    if (!datagram || datagram->header.qkey != attr_.qkey) continue;
    const bool is_note = (datagram->header.flags & (kDatagramRing | kDatagramBell)) != 0;
    is_note ? take_note(datagram->header, std::move(memory)) : receive(*datagram);
  }
  errno = saved_errno;
}

bool UdQueuePair::take_receive(std::size_t bytes) {
  if (srq != nullptr) return static_cast<SharedReceiveQueue*>(srq)->take(receive_, srq_sges_);
  if (receives_.empty()) return false;
  receive_ = receives_.front();
  // A receive that is too small stays for a datagram that fits; this one is lost.
  if (length_of({receive_.sges, receive_.sge_count}) < bytes) return false;
  receives_.pop();
  return true;
}

bool UdQueuePair::may_write(const PostedReceive& receive) const {
  for (const ibv_sge& sge : std::span(receive.sges, receive.sge_count)) {
    if (!device_.keys().covers(sge.lkey, ibv_qp::pd, sge.addr, sge.length, IBV_ACCESS_LOCAL_WRITE)) return false;
  }
  return true;
}

void UdQueuePair::receive(const ParsedDatagram& datagram) {
  if (is_closing_) return;
  const std::size_t bytes = kGrhBytes + datagram.payload.size();
  if (!take_receive(bytes)) return;
  ibv_wc wc{};
  wc.wr_id = receive_.wr_id;
  wc.opcode = IBV_WC_RECV;
  wc.qp_num = qp_num;
  wc.src_qp = datagram.header.source_qpn;
  if (!may_write(receive_)) {
    wc.status = IBV_WC_LOC_PROT_ERR;
    state = IBV_QPS_ERR;
  } else if (length_of({receive_.sges, receive_.sge_count}) < bytes) {
    wc.status = IBV_WC_LOC_LEN_ERR;  // only with a shared queue, from which the receive was taken already
  } else {
    wc.status = IBV_WC_SUCCESS;
    wc.byte_len = static_cast<std::uint32_t>(bytes);
    if ((datagram.header.flags & kDatagramIsGlobal) != 0) wc.wc_flags |= IBV_WC_GRH;
    if ((datagram.header.flags & kDatagramHasImm) != 0) {
      wc.wc_flags |= IBV_WC_WITH_IMM;
      wc.imm_data = datagram.header.imm_data;
    }
    fill(datagram);
  }
  finish_receive(wc, (datagram.header.flags & kDatagramSolicited) != 0);
}

void UdQueuePair::fill(const ParsedDatagram& datagram) {
  const std::span<const ibv_sge> sges(receive_.sges, receive_.sge_count);
  if ((datagram.header.flags & kDatagramIsGlobal) != 0) {
    const ibv_grh grh = grh_for(datagram);
    scatter(reinterpret_cast<const std::byte*>(&grh), sges, 0, sizeof grh);
  }
  scatter(datagram.payload.data(), sges, kGrhBytes, datagram.payload.size());
}

void UdQueuePair::finish_receive(const ibv_wc& wc, bool solicited) {
  completed_.push_back(wc);
  if (armed_for_ == ArmKind::any || solicited || wc.status != IBV_WC_SUCCESS) receive_queue().fire();
}

}  // namespace ringsock::soft
