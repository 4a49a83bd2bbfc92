#include "tests/packetdrill/host.h"

#include <algorithm>
#include <cerrno>

#include "core/engine/tcp/options.h"
#include "tests/packetdrill/icmp_errors.h"

namespace ringsock::packetdrill {
namespace {

using engine::tcp::SegmentIn;
using engine::tcp::SegmentOut;
using engine::tcp::State;
using namespace std::chrono_literals;

engine::tcp::Seq length_of(const SegmentIn& in) {
  return static_cast<engine::tcp::Seq>(in.payload.size()) + ((in.flags & engine::tcp::kSyn) != 0 ? 1 : 0) +
         ((in.flags & engine::tcp::kFin) != 0 ? 1 : 0);
}

/// Linux offers at first what half of 128 KiB holds of full segments; scaled, the window is rounded up.
void choose_window(Socket& socket, bool timestamps) {
  if (socket.options.corrected_receive) return;
  const std::uint32_t mss = socket.settings.mtu_payload - (timestamps ? 12u : 0u);
  constexpr std::uint32_t kScaled = 1u << 7;
  socket.settings.receive_bytes = (65'536 / mss * mss + kScaled - 1) / kScaled * kScaled;
}

Endpoint default_local(bool v4) {
  Endpoint out;
  if (v4)
    out.address = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 168, 0, 1};
  else
    out.address = {0xfd, 0x3d, 0xfa, 0x7b, 0xd1, 0x7d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  return out;
}

}  // namespace

int Socket::error() const { return icmp_error != 0 || !started ? icmp_error : tcp.error(); }

int Socket::take_error() {
  if (const int error = std::exchange(icmp_error, 0); error != 0 || !started) return error;
  const int error = tcp.take_error();
  return error == ETIMEDOUT && soft_error != 0 ? soft_error : error;
}

SocketPtr Host::create(bool v6) {
  auto socket = std::make_shared<Socket>();
  socket->v6 = v6;
  sockets_.push_back(socket);
  return socket;
}

Status Host::bind(const SocketPtr& socket, const Endpoint& local) {
  for (const SocketPtr& other : sockets_)
    if (other != socket && other->listening && local.port != 0 && other->local.port == local.port)
      return Error{EADDRINUSE, "bind"};
  socket->local = local;
  if (local.port == 0) socket->local.port = next_port_++;
  return {};
}

Status Host::listen(const SocketPtr& socket, int backlog) {
  if (socket->started) return Error{EINVAL, "listen"};
  if (socket->local.port == 0) socket->local.port = next_port_++;
  socket->listening = true;
  socket->backlog = std::clamp(backlog, 0, 4096);
  return {};
}

void Host::connect(const SocketPtr& socket, const Endpoint& remote) {
  socket->remote = remote;
  if (socket->local.is_any()) socket->local.address = default_local(remote.is_v4()).address;
  if (socket->local.port == 0) socket->local.port = next_port_++;
  socket->settings.mtu_payload = remote.is_v4() ? 1460 : 1440;
  choose_window(*socket, false);
  socket->tcp = engine::tcp::TcpConnection(socket->settings);
  socket->started = socket->connecting = true;
  socket->tcp.connect(next_initial_ += 64'000, now_);
  pump();
}

void Host::reset_children(const SocketPtr& listener) {
  for (const SocketPtr& child : sockets_) {
    if (child->listener.lock() != listener) continue;
    child->listener.reset();
    child->orphan = true;
    if (child->connected)
      child->tcp.abort(now_);
    else
      child->started = false;
  }
  listener->accepts.clear();
  listener->listening = false;
}

void Host::close(const SocketPtr& socket) {
  socket->orphan = true;
  if (socket->listening) reset_children(socket);
  if (socket->started && socket->options.linger && socket->options.linger_seconds == 0)
    socket->tcp.abort(now_);
  else if (socket->started)
    socket->tcp.close(now_);
  pump();
}

SocketPtr Host::find(const Arrival& in) const {
  for (const SocketPtr& socket : sockets_)
    if (socket->started && socket->local == in.destination && socket->remote == in.source &&
        socket->tcp.state() != State::closed)
      return socket;
  return nullptr;
}

SocketPtr Host::find_listener(const Arrival& in) const {
  for (const SocketPtr& socket : sockets_) {
    if (!socket->listening || socket->local.port != in.destination.port) continue;
    if (socket->local.is_any() || socket->local.address == in.destination.address) return socket;
  }
  return nullptr;
}

/// RFC 9293, 3.10.7.1.
void Host::refuse(const Arrival& in) {
  if ((in.segment.flags & engine::tcp::kRst) != 0) return;
  SegmentOut out;
  out.flags = engine::tcp::kRst;
  if ((in.segment.flags & engine::tcp::kAck) != 0) {
    out.seq = in.segment.ack;
  } else {
    out.flags |= engine::tcp::kAck;
    out.ack = in.segment.seq + length_of(in.segment);
  }
  for (auto& packet : make_packets(in.destination, in.source, out, true)) out_.push_back({now_, std::move(packet)});
}

void Host::accept_syn(const SocketPtr& listener, const Arrival& in) {
  if (static_cast<int>(listener->accepts.size()) > listener->backlog) return;
  const SocketPtr child = create(listener->v6);
  child->listener = listener;
  child->local = in.destination;
  child->remote = in.source;
  child->settings = listener->settings;
  child->options = listener->options;
  child->settings.mtu_payload = in.source.is_v4() ? 1460 : 1440;
  child->settings.syn_retries = 5;
  choose_window(*child, engine::tcp::parse_options(in.segment.options).timestamps);
  child->tcp = engine::tcp::TcpConnection(child->settings);
  child->started = bool(child->tcp.accept(in.segment, next_initial_ += 64'000, now_));
  child->orphan = !child->started;
  child->deferred_until = now_ + std::chrono::seconds(child->options.defer_accept_seconds);
}

/// tcp(7), TCP_DEFER_ACCEPT; and a full accept queue drops the last segment of a handshake.
bool Host::is_held_back(Socket& socket, const Arrival& in) const {
  if (socket.tcp.state() != State::syn_received || (in.segment.flags & engine::tcp::kRst) != 0) return false;
  const SocketPtr listener = socket.listener.lock();
  if (!listener || (in.segment.flags & engine::tcp::kAck) == 0) return false;
  if (static_cast<int>(listener->accepts.size()) > listener->backlog) return true;
  return length_of(in.segment) == 0 && now_ < socket.deferred_until;
}

void Host::take(const SocketPtr& socket, const Arrival& in) {
  if (is_held_back(*socket, in)) return;
  socket->last_end = in.segment.seq + length_of(in.segment);
  if (!in.segment.payload.empty()) socket->last_data_received = now_;
  if ((in.segment.flags & engine::tcp::kAck) != 0) socket->last_ack_received = now_;
  socket->tcp.segment(in.segment, now_);
}

void Host::arrive(std::span<const std::byte> packet) {
  if (const auto error = parse_icmp_packet(packet)) return hear(*error);
  const auto in = parse_packet(packet);
  if (!in) return;
  SocketPtr socket = find(*in);
  const bool syn =
      (in->segment.flags & (engine::tcp::kSyn | engine::tcp::kAck | engine::tcp::kRst)) == engine::tcp::kSyn;
  // RFC 9293, 3.6.1: a SYN with a later number ends TIME-WAIT.
  if (socket && syn && socket->tcp.state() == State::time_wait &&
      engine::tcp::before(socket->last_end, in->segment.seq) && find_listener(*in)) {
    socket->started = false;
    socket = nullptr;
  }
  if (socket) {
    take(socket, *in);
  } else if (const SocketPtr listener = find_listener(*in); listener && syn) {
    accept_syn(listener, *in);
  } else {
    refuse(*in);
  }
  pump();
}

/// RFC 5461 and RFC 1191. A router tells of a segment that this side has sent.
void Host::hear(const IcmpError& error) {
  Arrival about;
  about.source = error.destination;
  about.destination = error.source;
  const SocketPtr socket = find(about);
  if (!socket) return;
  const IcmpMeaning meaning = meaning_of(error);
  const State state = socket->tcp.state();
  if (meaning.too_big) {
    const std::uint32_t headers = error.source.is_v4() ? 40 : 60;
    if (error.mtu > headers)
      socket->tcp.packet_too_big(static_cast<std::uint16_t>(std::min<std::uint32_t>(error.mtu - headers, 65'000)),
                                 error.seq, now_);
  } else if (state == State::syn_received) {
    socket->started = false;
    socket->orphan = true;
  } else if (meaning.error != 0 && (state == State::syn_sent || socket->options.hears_of_icmp)) {
    socket->icmp_error = meaning.error;
    socket->connecting = false;
    if (state == State::syn_sent) socket->tcp.abort(now_);
    ++socket->arrivals;
  } else {
    socket->soft_error = meaning.error;
  }
  pump();
}

void Host::pump_one(const SocketPtr& socket) {
  while (const auto out = socket->tcp.next_segment(now_)) {
    for (auto& packet : make_packets(socket->local, socket->remote, *out, whole_))
      out_.push_back({now_, std::move(packet)});
    if (out->payload_bytes != 0 || (out->flags & engine::tcp::kFin) != 0) socket->last_data_sent = now_;
  }
  socket->notices.progress(socket->tcp.unsent(), socket->tcp.unacked(), now_);
  const std::uint8_t events = socket->tcp.take_events();
  if (events != 0) ++socket->arrivals;
  if ((events & engine::tcp::kFailed) != 0) socket->connecting = false;
  if ((events & engine::tcp::kConnected) == 0) return;
  socket->connecting = false;
  socket->connected = true;
  socket->last_data_sent = socket->last_data_received = now_;
  if (const SocketPtr listener = socket->listener.lock()) {
    listener->accepts.push_back(socket);
    ++listener->arrivals;
  }
}

void Host::pump() {
  for (const SocketPtr& socket : sockets_)
    if (socket->started) pump_one(socket);
  sockets_.remove_if([](const SocketPtr& socket) {
    const bool dead = !socket->started || socket->tcp.state() == State::closed;
    const bool waits = !socket->listener.expired() && socket->connected;
    return dead && (socket->orphan || (!socket->listener.expired() && !waits));
  });
}

Nanos Host::next_event() const {
  Nanos next = Nanos::max();
  for (const SocketPtr& socket : sockets_)
    if (socket->started && socket->tcp.state() != State::closed) next = std::min(next, socket->tcp.next_timer());
  for (const Waiter* waiter : waiters_)
    if (!waiter->ready) next = std::min(next, waiter->deadline);
  return next;
}

void Host::run_timers() {
  for (const SocketPtr& socket : sockets_)
    if (socket->started && socket->tcp.next_timer() <= now_) socket->tcp.timers(now_);
  pump();
}

/// Threads whose call can return do so before the time goes on. A thread that does not ask for the time afterwards
/// holds it up for a second: on a busy machine a thread needs many milliseconds to wake up.
void Host::settle(Lock& lock) {
  for (Waiter* waiter : waiters_) {
    if (waiter->ready || (!waiter->done() && now_ < waiter->deadline)) continue;
    waiter->ready = true;
    ++returning_;
  }
  if (returning_ == 0) return;
  changed_.notify_all();
  changed_.wait_for(lock, 1s, [this] { return returning_ == 0; });
  returning_ = 0;
}

void Host::advance(Lock& lock, Nanos until) {
  for (;;) {
    pump();
    settle(lock);
    const Nanos next = next_event();
    if (next > until) break;
    now_ = std::max(now_, next);
    run_timers();
  }
  now_ = std::max(now_, until);
}

std::optional<Host::Packet> Host::next_packet(Lock& lock) {
  for (;;) {
    pump();
    if (!out_.empty()) {
      Packet packet = std::move(out_.front());
      out_.pop_front();
      return packet;
    }
    settle(lock);
    if (!out_.empty()) continue;
    const Nanos next = next_event();
    if (next == Nanos::max()) return {};
    now_ = std::max(now_, next);
    run_timers();
  }
}

bool Host::wait(Lock& lock, const std::function<bool()>& done, Nanos deadline) {
  if (std::this_thread::get_id() != script_) {
    note_return();  // of a wait before, in the same call
    if (done()) return true;
    Waiter waiter{done, deadline};
    waiters_.push_back(&waiter);
    changed_.wait(lock, [&] { return waiter.ready || ended_; });
    waiters_.remove(&waiter);
    return done();
  }
  while (!done()) {
    const Nanos next = std::min(next_event(), deadline);
    if (next == Nanos::max() || now_ >= deadline) return false;
    advance(lock, next);
  }
  return true;
}

void Host::note_return() {
  if (std::this_thread::get_id() == script_ || returning_ == 0) return;
  --returning_;
  changed_.notify_all();
}

void Host::end(Lock& lock) {
  ended_ = true;
  changed_.notify_all();
  changed_.wait_for(lock, 1s, [this] { return waiters_.empty(); });
}

}  // namespace ringsock::packetdrill
