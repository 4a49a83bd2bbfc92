#include "libvmacompat/tcp/carried_connection.h"

#include <netinet/in.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>

#include "core/base/abandon.h"
#include "core/base/log.h"
#include "core/device/packet/packet_sender.h"
#include "core/ethernet/interface.h"
#include "core/wire/tcp.h"
#include "libvmacompat/process/kernel_return.h"
#include "libvmacompat/process/rings_of_process.h"
#include "libvmacompat/process/vma_process.h"
#include "libvmacompat/tcp/kernel_connection.h"
#include "libvmacompat/tcp/tcp_clock.h"
#include "libvmacompat/tcp/tcp_events.h"
#include "libvmacompat/tcp/tcp_settings.h"

namespace ringsock::vma {

namespace tcp = engine::tcp;

namespace {

/// Options belong to the socket's first look: a changed option has the connection looked at anew.
constexpr std::uint32_t kOptionsGeneration = 1;

runtime::RingChoice choice_of_process() {
  return {static_cast<runtime::RingLogic>(process().config.ring_allocation_logic_rx),
          process().config.ring_migration_ratio_rx, process().next_choice()};
}

/// Returns whether routers on the way have noted congestion (RFC 3168).
bool has_congestion_mark(const ethernet::Packet& packet) {
  constexpr unsigned kMark = 3;
  const std::byte* const ip = packet.headers.data() + packet.layout.ip;
  const unsigned bits =
      packet.layout.is_ipv6 ? std::to_integer<unsigned>(ip[1]) >> 4 : std::to_integer<unsigned>(ip[1]);
  return (bits & kMark) == kMark;
}

std::uint32_t events_of(std::uint8_t engine_events) {
  std::uint32_t out = 0;
  if ((engine_events & (tcp::kReadable | tcp::kPeerClosed | tcp::kUrgent | tcp::kFailed | tcp::kClosed)) != 0)
    out |= EPOLLIN;
  if ((engine_events & (tcp::kWritable | tcp::kConnected | tcp::kFailed | tcp::kClosed)) != 0) out |= EPOLLOUT;
  return out;
}

}  // namespace

CarriedConnection::CarriedConnection(runtime::Endpoint& endpoint, TcpEvents& events)
    : endpoint_(endpoint), events_(events), choice_(choice_of_process()) {}

CarriedConnection::~CarriedConnection() = default;

// -- the way ---------------------------------------------------------------------------------------

namespace {
/// Returns whether the handshake of the accepted socket `fd` came by that interface.
bool was_shaken_on(ethernet::Ethernet& ethernet, int interface, int fd) {
  const int index = interface_of_handshake(fd);
  if (index == 0 || index == interface) return true;
  const auto link = ethernet.network().link(interface);  // packets come by its VRF, as the kernel sees them
  return link && link->master == index;
}
}  // namespace

bool CarriedConnection::find_way(int fd, const SocketAddress& local, const SocketAddress& peer, bool is_accepted) {
  auto ethernet = ethernet::Ethernet::of_socket(fd, rings_of_process());
  if (!ethernet) return false;
  ethernet_ = *std::move(ethernet);
  kernels_local_ = local;
  kernels_peer_ = peer;
  local_ = local.unmapped();
  peer_ = peer.unmapped();
  source_ = wire::EndName::of(peer_);
  if (detours().are_expected(peer_, monotonic_now())) return false;
  options_ = tcp_send_options_of(fd, peer_.family());
  way_ = way_by(options_);
  if (!way_) return false;
  ring_ = way_->ring();
  return !is_accepted || was_shaken_on(*ethernet_, ring_->interface().ifindex(), fd);
}

/// Asks for the way there. Returns null when no ring of the embedded device leads there.
std::shared_ptr<ethernet::Destination> CarriedConnection::way_by(const ethernet::SendOptions& options) {
  auto way = std::make_shared<ethernet::Destination>(peer_, nullptr, std::uint8_t{IPPROTO_TCP});
  way->find_way(*ethernet_, local_, options, kOptionsGeneration, *choice_);
  const bool is_fine = way->ring() && way->ring()->interface().is_embedded() && way->source() == local_;
  return is_fine ? way : nullptr;
}

/// Returns false when the ring does not lead there with these options.
bool CarriedConnection::go_by(const ethernet::SendOptions& options) {
  auto next = way_by(options);
  if (!next || next->ring() != ring_) return false;
  const std::lock_guard guard(lock_);
  options_ = options;
  way_ = std::move(next);
  if (phase_ != Phase::running) return true;
  tcp::Settings settings = engine_.settings();
  settings.mtu_payload = tcp_payload_of(way_->max_payload());
  const Nanos now = monotonic_now();
  engine_.set(settings, now);
  flush(now);
  return true;
}

/// Returns whether the kernel could carry the connection now: it has the address, and a way to the peer.
bool CarriedConnection::can_go_back() const {
  net::NetworkState& network = ethernet_->network();
  net::PathQuery query;
  query.destination = net::IpAddress::of(peer_);
  query.source = net::IpAddress::of(local_);
  query.protocol = IPPROTO_TCP;
  query.source_port = local_.port();
  query.destination_port = peer_.port();
  if (peer_.family() == AF_INET6) query.oif = static_cast<int>(peer_.in6().sin6_scope_id);
  if (!network.find_address(query.source)) return false;
  const auto path = network.path_to(query);
  return !path || path->type != net::PathType::unreachable;
}

bool CarriedConnection::follow_options(int fd) { return go_by(tcp_send_options_of(fd, peer_.family())); }

/// Follows the network: routes, neighbours, netfilter.
bool CarriedConnection::look(Nanos now) {
  write_trace();
  if (next_timer_.load(std::memory_order_relaxed) <= now) {
    const auto before = endpoint_.activity();
    with_engine([](tcp::TcpConnection& engine, Nanos at) { return engine.timers(at), true; });
    if (endpoint_.activity() != before) {
      endpoint_.notify_watchers();
      events_.wake();
    }
  }
  std::shared_ptr<ethernet::Destination> way;
  ethernet::SendOptions options;
  {
    const std::lock_guard guard(lock_);
    if (phase_ != Phase::running) return true;
    way = way_;
    options = options_;
  }
  if (way->needs_refresh()) static_cast<void>(way->refresh(ethernet_->network()));
  if (way->is_current(ethernet_->network(), kOptionsGeneration)) return true;
  // While nothing leads to the peer, neither for the kernel, the connection waits: the engine repeats what is lost.
  return go_by(options) || !can_go_back();
}

bool CarriedConnection::has_detour(int fd, Nanos now) {
  Detour::Segments segments{};
  {
    const std::lock_guard guard(lock_);
    if (phase_ != Phase::running) return false;
    const tcp::Info info = engine_.info();
    segments = {info.segments_in, info.segments_out};
  }
  if (!detour_.is_found(fd, segments, now)) return false;
  if (segments.in == 0) detours().note(peer_, now);
  return true;
}

// -- the trace -------------------------------------------------------------------------------------

void CarriedConnection::trace(std::uint32_t segments) {
  const std::lock_guard guard(lock_);
  if (trace_ != nullptr) return trace_->go_on(segments);
  trace_ = std::make_unique<TcpTrace>(segments, monotonic_now());
  is_traced_.store(true, std::memory_order_relaxed);
}

/// Takes what has been traced, and ends the trace when it is complete, or the connection leaves the ring.
std::vector<std::string> CarriedConnection::take_trace() {
  const std::lock_guard guard(lock_);
  if (trace_ == nullptr) return {};
  std::vector<std::string> lines = trace_->take_lines();
  if (trace_->is_over() || phase_ != Phase::running) {
    trace_.reset();
    is_traced_.store(false, std::memory_order_relaxed);
  }
  return lines;
}

/// Writes what has been traced.
void CarriedConnection::write_trace() noexcept {
  if (!is_traced_.load(std::memory_order_relaxed)) [[likely]]
    return;
  try {
    const std::vector<std::string> lines = take_trace();  // without the lock they may go to the application's function
    const std::string ends = "TCP " + local_.to_string() + " - " + peer_.to_string() + ": ";
    for (const std::string& line : lines) process().log.write(config::VmaLogLevel::info, ends + line);
  } catch (const std::bad_alloc&) {  // these lines are lost
  }
}

// -- moving ----------------------------------------------------------------------------------------

void CarriedConnection::set_phase(Phase phase) {
  const std::lock_guard guard(lock_);
  phase_ = phase;
}

Status CarriedConnection::take_over(int fd) {
  set_phase(Phase::moving);
  const verbs::FlowTuple tuple{.protocol = IPPROTO_TCP, .destination = local_, .source = peer_};
  // From here on the kernel sees no segment.
  if (Status attached = ring_->attach(tuple, *this); !attached) {
    set_phase(Phase::away);
    return attached;
  }
  is_attached_ = true;
  auto settings = tcp_settings_of(fd, way_->max_payload());
  settings.spare_chunks = &tcp_clock().spare_chunks();
  settings.algorithm = process().config.tcp_cc_algo == 0 ? tcp::Algorithm::new_reno : tcp::Algorithm::cubic;
  settings.quick_ack = process().config.tcp_quickack;
  reuses_address_ = reuses_address(fd);
  const auto state = take_out(fd);
  const Status begun = state ? (engine_ = tcp::TcpConnection(settings), begin(*state)) : Status(state.error());
  if (begun) {
    detour_.begin(fd);
    tell_agent(agent::State::kEstablished);
    return ok();
  }
  reuse_address(fd, reuses_address_);
  leave_ring();
  return_kept();
  return begun;
}

Status CarriedConnection::begin(const tcp::Established& state) {
  const std::lock_guard guard(lock_);
  const Nanos now = monotonic_now();
  if (Status begun = engine_.begin(state, now); !begun) return begun;
  phase_ = Phase::running;
  for (const ethernet::Arrival& arrival : kept_) feed(arrival.packet(), now);
  kept_.clear();
  flush(now);
  return ok();
}

Status CarriedConnection::give_back(int fd) {
  {
    const std::lock_guard guard(lock_);
    if (phase_ != Phase::running) return Error{EBUSY, "tcp: give back"};
  }
  if (!can_go_back()) return Error{EBUSY, "tcp: no way to the peer"};
  tcp::Established state;
  bool peer_closed = false;
  {
    const std::lock_guard guard(lock_);
    if (phase_ != Phase::running) return Error{EBUSY, "tcp: give back"};
    auto saved = engine_.save(monotonic_now());
    if (!saved) return saved.error();
    state = *std::move(saved);
    phase_ = Phase::moving;
    next_timer_.store(Nanos::max(), std::memory_order_relaxed);
  }
  peer_closed = std::exchange(state.peer_closed, false);
  if (peer_closed) --state.rcv_nxt;  // the FIN comes again
  if (static_cast<std::int32_t>(state.rcv_wup - state.rcv_nxt) > 0) state.rcv_wup = state.rcv_nxt;
  Status put = put_back(fd, kernels_local_, kernels_peer_, state);
  leave_ring();
  if (put) put = go_on(fd, state);
  reuse_address(fd, reuses_address_);
  if (!put) {
    log_warn("%s: a TCP connection is lost on its way to the kernel: %s: %s", peer_.to_string().c_str(),
             put.error().where, std::strerror(put.error().code));
    const std::lock_guard guard(lock_);
    emit({.seq = state.snd_nxt, .ack = state.rcv_nxt, .flags = tcp::kRst | tcp::kAck});
    return put;
  }
  return_kept();
  if (peer_closed) play_end_of_stream(state);
  return ok();
}

/// Tells vmad(8) of the connection, or that it has ended.
void CarriedConnection::tell_agent(std::uint8_t state) noexcept {
  if (peer_.family() != AF_INET || (state == agent::State::kClosed && agents_id_ == 0)) return;
  if (agents_id_ == 0) agents_id_ = process().agent.next_id();
  process().agent.tell({.id = agents_id_,
                        .source = local_.in4().sin_addr,
                        .destination = peer_.in4().sin_addr,
                        .source_port = local_.in4().sin_port,
                        .destination_port = peer_.in4().sin_port,
                        .type = SOCK_STREAM,
                        .state = state});
}

void CarriedConnection::leave_ring() noexcept {
  if (is_attached_) tell_agent(agent::State::kClosed);
  if (std::exchange(is_attached_, false))
    ring_->detach({.protocol = IPPROTO_TCP, .destination = local_, .source = peer_}, *this);
  {
    const std::lock_guard guard(lock_);
    phase_ = Phase::away;
    next_timer_.store(Nanos::max(), std::memory_order_relaxed);
  }
  write_trace();
}

/// Hands segments that the ring had to the kernel. Those that it refuses are lost: the peer repeats them.
void CarriedConnection::return_kept() {
  std::vector<ethernet::Arrival> kept;
  {
    const std::lock_guard guard(lock_);
    kept.swap(kept_);
  }
  KernelReturn kernel;
  for (const ethernet::Arrival& arrival : kept) kernel.give(arrival);
}

/// Plays the peer's FIN to the kernel, which has the connection as it was before.
void CarriedConnection::play_end_of_stream(const tcp::Established& state) const {
  wire::TcpHeader header;
  header.source_port = wire::Be16(peer_.port());
  header.destination_port = wire::Be16(local_.port());
  header.sequence = wire::Be32(state.rcv_nxt);
  header.acknowledgement = wire::Be32(state.snd_una);
  header.words = 5 << 4;
  header.flags = tcp::kFin | tcp::kAck;
  header.window =
      wire::Be16(static_cast<std::uint16_t>(std::min<std::uint32_t>(state.snd_wnd >> state.snd_scale, 65535)));
  header.checksum = header.urgent = wire::Be16();
  ethernet::HeaderTemplate below({}, {}, peer_, local_, {}, 64, IPPROTO_TCP, ethernet_->identification_numbers());
  std::array<std::byte, ethernet::HeaderTemplate::kMaxBytes + sizeof header> frame;
  const auto headers = below.write(std::span(frame).first<ethernet::HeaderTemplate::kMaxBytes>(), sizeof header);
  std::memcpy(frame.data() + headers.size(), &header, sizeof header);
  KernelReturn kernel;
  if (!kernel.give(std::span(frame).first(headers.size() + sizeof header), local_))
    log_warn("%s: the end of a TCP stream was not told to the kernel", peer_.to_string().c_str());
}

void CarriedConnection::forget_after_fork() noexcept {
  new (&lock_) Mutex;
  abandon(ring_);
  abandon(way_);
  abandon(ethernet_);
  is_attached_ = false;
  if (engine_.state() != tcp::State::closed) phase_ = Phase::away;
}

// -- segments --------------------------------------------------------------------------------------

void CarriedConnection::progress() noexcept {
  polls_.store(polls_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  if (!ring_) return;
  ring_->poll(nullptr);
  const Nanos next = next_timer_.load(std::memory_order_relaxed);
  if (next == Nanos::max() || next > monotonic_now()) return;
  with_engine([](tcp::TcpConnection& engine, Nanos now) { return engine.timers(now), true; });
}

ethernet::Delivery CarriedConnection::deliver(ethernet::Incoming& incoming, const wire::EndName&) noexcept {
  using enum ethernet::Delivery;
  const std::lock_guard guard(lock_);
  try {
    if (phase_ == Phase::running) {
      const Nanos now = monotonic_now();
      feed(incoming.packet(), now);
      const bool has_news = note_events();
      flush(now);
      return has_news ? waits : done;
    }
    if (phase_ != Phase::moving) return refused;
    if (auto kept = incoming.keep()) kept_.push_back(*std::move(kept));
  } catch (const std::bad_alloc&) {  // as if the segment had been lost on its way
  }
  return done;
}

void CarriedConnection::feed(const ethernet::Packet& packet, Nanos now) {
  const wire::FrameLayout& layout = packet.layout;
  wire::TcpHeader header;
  if (packet.headers.size() < layout.payload || layout.payload < layout.transport + sizeof header) return;
  std::memcpy(&header, packet.headers.data() + layout.transport, sizeof header);
  const std::size_t options_at = layout.transport + sizeof header;
  tcp::SegmentIn in{.seq = header.sequence.host(),
                    .ack = header.acknowledgement.host(),
                    .window = header.window.host(),
                    .urgent = header.urgent.host(),
                    .flags = header.flags,
                    .congestion_experienced = has_congestion_mark(packet),
                    .options = packet.headers.subspan(options_at, layout.payload - options_at),
                    .payload = packet.payload};
  const std::size_t mss = std::max<std::size_t>(engine_.settings().mtu_payload, 536);
  in.merged = static_cast<std::uint16_t>(std::max<std::size_t>(1, (packet.payload.size() + mss - 1) / mss));
  if (trace_ != nullptr) [[unlikely]]
    trace_->received(in, engine_.info(), now);
  engine_.segment(in, now);
}

/// Tells the endpoint what the engine has to say. Returns whether there is something.
bool CarriedConnection::note_events() noexcept {
  const std::uint32_t events = events_of(engine_.take_events());
  if (events != 0) {
    endpoint_.note_activity(events);
    events_.note_news(events);
  }
  return events != 0;
}

void CarriedConnection::flush(Nanos now) {
  while (const auto segment = engine_.next_segment(now)) {
    if (trace_ != nullptr) [[unlikely]]
      trace_->sent(*segment, engine_.info(), now);
    emit(*segment);
  }
  note_events();
  next_timer_.store(engine_.next_timer(), std::memory_order_relaxed);
}

/// A segment that the device does not take counts as lost on the way.
void CarriedConnection::emit(const tcp::SegmentOut& segment) {
  if (!ring_) return;
  std::array<std::byte, ethernet::HeaderTemplate::kMaxBytes + sizeof(wire::TcpHeader) + tcp::kMostOptionBytes> room;
  const std::size_t tcp_bytes = sizeof(wire::TcpHeader) + segment.option_bytes;
  const auto headers = way_->header().write(std::span(room).first<ethernet::HeaderTemplate::kMaxBytes>(),
                                            tcp_bytes + segment.payload_bytes);
  wire::TcpHeader header{};
  header.source_port = wire::Be16(local_.port());
  header.destination_port = wire::Be16(peer_.port());
  header.sequence = wire::Be32(segment.seq);
  header.acknowledgement = wire::Be32(segment.ack);
  header.words = static_cast<std::uint8_t>(tcp_bytes / 4 << 4);
  header.flags = segment.flags;
  header.window = wire::Be16(segment.window);
  header.urgent = wire::Be16(segment.urgent);
  std::memcpy(room.data() + headers.size(), &header, sizeof header);
  std::memcpy(room.data() + headers.size() + sizeof header, segment.options.data(), segment.option_bytes);
  std::array<iovec, 2> payload;
  std::size_t parts = 0;
  for (const auto piece : segment.payload) {
    if (!piece.empty()) payload[parts++] = {const_cast<std::byte*>(piece.data()), piece.size()};
  }
  const std::uint16_t cut = std::max<std::uint16_t>(segment.segment_bytes, 1);
  static_cast<void>(
      ring_->send_segments(std::span(room).first(headers.size() + tcp_bytes), std::span(payload).first(parts), cut));
}

int CarriedConnection::rehearse(std::span<const iovec> payload, std::size_t bytes) {
  soft::DatagramRoom room;
  const auto headers = way_->header().write(room.headers().first<ethernet::HeaderTemplate::kMaxBytes>(),
                                            sizeof(wire::TcpHeader) + bytes);
  wire::TcpHeader header{};
  header.source_port = wire::Be16(local_.port());
  header.destination_port = wire::Be16(peer_.port());
  header.words = sizeof header / 4 << 4;
  header.flags = tcp::kPsh | tcp::kAck;
  std::memcpy(room.headers().data() + headers.size(), &header, sizeof header);
  return ring_->rehearse(room, headers.size() + sizeof header, payload);
}

}  // namespace ringsock::vma
