#include "libvmacompat/udp/sender.h"

#include <mellanox/vma_extra.h>
#include <netinet/in.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <ctime>
#include <mutex>

#include "core/base/clock.h"
#include "core/base/thread_id.h"
#include "core/device/packet/packet_queue_pair.h"
#include "core/ethernet/bursts.h"
#include "core/ethernet/interface.h"
#include "libvmacompat/process/kernel_options.h"
#include "libvmacompat/process/vma_process.h"
#include "libvmacompat/udp/udp_inheritance.h"
#include "libvmacompat/udp/udp_options.h"
#include "libvmacompat/udp/udp_send_options.h"
#include "libvmacompat/udp/udp_socket.h"

namespace ringsock::vma {

namespace {

using Count = runtime::VmaSocketCount;

/// Flags without effect on a datagram that leaves at once.
constexpr int kHarmlessFlags = MSG_DONTWAIT | MSG_NOSIGNAL | MSG_CONFIRM;
/// Returns a number that changes every few milliseconds: of the CPU's counter, or of the kernel's coarse clock where
/// the CPU has none.
std::uint64_t tick() {
  constexpr int kShift = 23;
  if (const std::uint64_t now = ticks(); now != 0) [[likely]]
    return now >> kShift;
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return static_cast<std::uint64_t>(now.tv_nsec);
}

/// All versions of Linux with UDP_SEGMENT cut into at least this many. Sends of more segments go to the kernel, which
/// knows its own limit.
constexpr std::size_t kMostSegments = 64;

/// Returns whether rings can carry the payload, in one packet or in segments.
[[gnu::always_inline]] inline bool fits(const ethernet::Destination& destination, std::size_t payload,
                                        std::uint16_t segment_bytes) {
  if (segment_bytes == 0 || payload <= segment_bytes) return payload <= destination.max_payload();
  constexpr std::size_t kLongest = 65535 - ethernet::HeaderTemplate::kMaxBytes;
  return segment_bytes <= destination.max_payload() && payload <= std::min(kLongest, kMostSegments * segment_bytes) &&
         !destination.header().may_be_cut() &&  // each fragmentable segment would need an identification of its own
         destination.ring()->interface().segments_udp();
}

std::span<const iovec> parts_of(const msghdr& message) { return {message.msg_iov, message.msg_iovlen}; }

std::size_t payload_bytes(const msghdr& message) {
  if (message.msg_iovlen == 1) [[likely]]
    return message.msg_iov[0].iov_len;
  std::size_t total = 0;
  for (const iovec& part : parts_of(message)) total += part.iov_len;
  return total;
}

}  // namespace

Result<ssize_t> Sender::send_by_kernel(const msghdr& message, int flags) {
  if ((flags & VMA_SND_FLAGS_DUMMY) != 0) return send_dummy(message, flags & ~VMA_SND_FLAGS_DUMMY);
  if (is_paced()) return send_paced(message, flags);
  return hand_to_kernel(message, flags);
}

Result<ssize_t> Sender::hand_to_kernel(const msghdr& message, int flags) {
  inheritance_.look();
  ethernet::bursts().send_all();
  auto sent = kernel_.send(message, flags);
  if (sent && (flags & MSG_MORE) != 0) kernel_sends_.fetch_or(kForNow, std::memory_order_relaxed);
  if (sent && (flags & MSG_MORE) == 0)
    kernel_sends_.fetch_and(static_cast<std::uint8_t>(~kForNow), std::memory_order_relaxed);
  return sent;
}

// The functions on the path of each datagram are inlined into one.

/// Returns null when the kernel has to send.
[[gnu::always_inline]] inline ethernet::Destination* Sender::destination_for(const msghdr& message,
                                                                             const SendControl* control) {
  const bool has_way = control != nullptr && control->family != AF_UNSPEC;
  if (!has_way && message.msg_name != nullptr && !destinations_.empty() &&
      destinations_.front().is_named(message.msg_name, message.msg_namelen)) [[likely]]
    return &destinations_.front();
  return look_up_destination(message, has_way ? control : nullptr);
}

/// Returns false when the kernel has to send.
[[gnu::always_inline]] inline bool Sender::make_current(ethernet::Destination& destination) {
  const std::uint32_t generation = conditions_.generation.load(std::memory_order_relaxed);
  if (ethernet_ != nullptr && destination.is_current(ethernet_->network(), generation)) [[likely]]
    return destination.ring() != nullptr;
  return find_way(destination);
}

/// Returns 0 or an errno value.
[[gnu::always_inline]] inline int Sender::hand_to_ring(ethernet::Destination& destination, const msghdr& message,
                                                       std::size_t payload, std::uint16_t segment_bytes,
                                                       bool may_wait) {
  soft::DatagramRoom room;
  const auto headers = destination.header().write(room.headers().first<ethernet::HeaderTemplate::kMaxBytes>(), payload);
  if (segment_bytes != 0 && payload > segment_bytes) [[unlikely]]
    return destination.ring()->send_segments(headers, parts_of(message), segment_bytes);
  // Not for headers that allow fragmentation: each datagram needs an identification of its own.
  if (may_wait && !destination.header().may_be_cut() && ethernet::Bursts::continue_run(*destination.ring()))
      [[unlikely]]
    return destination.ring()->send_in_burst(headers, parts_of(message), payload);
  return destination.ring()->send(room, headers.size(), parts_of(message));
}

[[gnu::always_inline]] inline void Sender::count_sent(std::size_t payload) {
  runtime::add_relaxed(slot_[Count::tx_packets], 1);
  runtime::add_relaxed(slot_[Count::tx_bytes], payload);
  slot_[runtime::VmaSocketLevel::tx_thread].store(this_thread_id(), std::memory_order_relaxed);
  if (!choice_.should_move()) [[likely]]
    return;
  choice_.move_here();
  flows_.note_change();  // the next datagram looks up its ring again
  statistics_.count(Count::tx_migrations);
}

/// Returns 0 or an errno value, or nothing when the kernel has to send. `control` is null for most datagrams.
[[gnu::always_inline]] inline std::optional<int> Sender::send_by_ring(const msghdr& message, std::size_t payload,
                                                                      const SendControl* control) {
  const std::uint16_t segment_bytes = control != nullptr && control->has_segment_bytes
                                          ? control->segment_bytes
                                          : segment_bytes_.load(std::memory_order_relaxed);
  const std::lock_guard guard(lock_);
  ethernet::Destination* const destination = destination_for(message, control);
  if (destination == nullptr || !make_current(*destination) || !fits(*destination, payload, segment_bytes)) [[unlikely]]
    return std::nullopt;
  if (const std::uint64_t now = tick(); now != last_error_look_) [[unlikely]] {
    last_error_look_ = now;
    const int error = option_of(kernel_.fd(), SOL_SOCKET, SO_ERROR, 0);
    if (error != 0) {
      statistics_.count(Count::tx_errors);
      return error;
    }
  }
  if (destination->needs_refresh()) [[unlikely]] {
    if (!destination->refresh(ethernet_->network())) return std::nullopt;
  }
  const int error = hand_to_ring(*destination, message, payload, segment_bytes, control == nullptr);
  if (error == 0) [[likely]] {
    count_sent(payload);
    return 0;
  }
  statistics_.count(error == ENOMEM ? Count::tx_eagains : Count::tx_errors);
  return std::nullopt;  // the queue is full, or the interface down: the kernel returns the right error
}

[[gnu::noinline]] std::optional<int> Sender::send_with_control(const msghdr& message, std::size_t payload) {
  const auto control = read_send_control(message);
  return control ? send_by_ring(message, payload, &*control) : std::nullopt;
}

/// @param ignored  reasons of kernel_sends_ that do not count
[[gnu::always_inline]] inline bool Sender::may_send_by_ring(const msghdr& message, int flags, unsigned ignored) const {
  return (flags & ~kHarmlessFlags) == 0 && message.msg_iovlen <= ethernet::DatagramPieces::kMostPayloadParts &&
         !conditions_.kernel_only.load(std::memory_order_relaxed) &&
         (kernel_sends_.load(std::memory_order_relaxed) & ~ignored) == 0;
}

[[gnu::always_inline]] inline Result<ssize_t> Sender::send_either_way(const msghdr& message, int flags) {
  if (may_send_by_ring(message, flags)) [[likely]] {
    ::pthread_testcancel();  // a cancellation point, as send(2) is; the ring's path has no other
    const std::size_t payload = payload_bytes(message);
    const auto error =
        message.msg_controllen == 0 ? send_by_ring(message, payload, nullptr) : send_with_control(message, payload);
    if (error == 0) [[likely]]
      return static_cast<ssize_t>(payload);
    if (error) return Error{*error, "sendmsg"};
  }
  return send_by_kernel(message, flags);
}

Result<ssize_t> Sender::send(const msghdr& message, int flags) {
  auto sent = send_either_way(message, flags);
  if (conditions_.has_new_rings.load(std::memory_order_relaxed)) [[unlikely]]
    rings_.tell();
  return sent;
}

Result<ssize_t> UdpSocket::send(const msghdr& message, int flags) { return sender_.send(message, flags); }

// -- paced sends

void Sender::set_pace(const PacingRate& rate) {
  pacer_.set(rate);
  if (rate.is_limit()) {
    kernel_sends_.fetch_or(kPaced, std::memory_order_relaxed);
  } else {
    kernel_sends_.fetch_and(static_cast<std::uint8_t>(~kPaced), std::memory_order_relaxed);
  }
}

/// A socket that is the kernel's has the kernel's pace.
bool Sender::is_paced() const {
  return (kernel_sends_.load(std::memory_order_relaxed) & (kPaced | kAlways)) == kPaced &&
         !conditions_.kernel_only.load(std::memory_order_relaxed);
}

bool Sender::goes_to_v4(const msghdr& message) {
  if (kernel_.domain() == AF_INET) return true;
  const std::lock_guard guard(lock_);
  if (message.msg_name == nullptr) return flows_.names().peer.is_v4_mapped();
  const auto to = SocketAddress::from(static_cast<const sockaddr*>(message.msg_name), message.msg_namelen);
  return to && to->is_v4_mapped();
}

/// Returns the length of the frames in which a datagram, or its segments, leave.
std::size_t Sender::frame_bytes(const msghdr& message, std::size_t payload, std::size_t segment_bytes) {
  constexpr std::size_t kV4Headers = 14 + 20 + 8, kV6Headers = 14 + 40 + 8;
  const std::size_t frames = segment_bytes != 0 && payload > segment_bytes ? (payload - 1) / segment_bytes + 1 : 1;
  return payload + frames * (goes_to_v4(message) ? kV4Headers : kV6Headers);
}

/// Each datagram leaves by itself, so that bursts are as long as configured.
[[gnu::noinline, gnu::cold]] Result<ssize_t> Sender::send_paced(const msghdr& message, int flags) {
  const std::size_t payload = message.msg_iovlen <= IOV_MAX ? payload_bytes(message) : 0;
  const auto control = read_send_control(message);
  const bool has_own = control && control->has_segment_bytes;
  const std::size_t frames = frame_bytes(message, payload, has_own ? control->segment_bytes : segment_bytes_.load());
  if (!pacer_.take(frames, (flags & MSG_DONTWAIT) == 0)) {
    // Of which poll(2) tells; each call of the kernel would end with it.
    const int pending = option_of(kernel_.fd(), SOL_SOCKET, SO_ERROR, 0);
    return pending != 0 ? Error{pending, "sendmsg"} : Error{EAGAIN, "sendmsg: the pace"};
  }
  ::pthread_testcancel();
  const auto error = may_send_by_ring(message, flags, kPaced) ? send_with_control(message, payload) : std::nullopt;
  auto sent = !error        ? hand_to_kernel(message, flags)
              : *error == 0 ? Result<ssize_t>(static_cast<ssize_t>(payload))
                            : Result<ssize_t>(Error{*error, "sendmsg"});
  if (sent) {
    pacer_.count_sent();
  } else {
    pacer_.give_back(frames);
  }
  return sent;
}

// -- dummy sends

/// Does what send_by_ring() does, but for the last step. Returns 0 or an errno value; EINVAL when the kernel would have
/// to send: it does not know such sends.
int Sender::rehearse(const msghdr& message, std::size_t payload, const SendControl* control) {
  const std::uint16_t segment_bytes =
      control != nullptr && control->has_segment_bytes ? control->segment_bytes : segment_bytes_.load();
  const std::lock_guard guard(lock_);
  ethernet::Destination* const destination = destination_for(message, control);
  if (destination == nullptr || !make_current(*destination) || !fits(*destination, payload, segment_bytes))
    return EINVAL;
  soft::DatagramRoom room;
  const auto headers =
      destination->header().write(room.headers().first<ethernet::HeaderTemplate::kMaxBytes>(), payload);
  return destination->ring()->rehearse(room, headers.size(), parts_of(message));
}

/// VMA_SND_FLAGS_DUMMY, with the other flags: runs the path of a send to load the caches. A datagram never leaves, by
/// whatever way.
[[gnu::noinline, gnu::cold]] Result<ssize_t> Sender::send_dummy(const msghdr& message, int flags) {
  constexpr Error kNotByRing{EINVAL, "sendmsg: a dummy send that no ring takes"};
  if (!may_send_by_ring(message, flags, kPaced)) return kNotByRing;
  const auto control = message.msg_controllen != 0 ? read_send_control(message) : std::nullopt;
  if (message.msg_controllen != 0 && !control) return kNotByRing;
  const std::size_t payload = payload_bytes(message);
  if (const int error = rehearse(message, payload, control ? &*control : nullptr); error != 0)
    return Error{error, "sendmsg: a dummy send"};
  statistics_.count(Count::tx_dummies);
  return static_cast<ssize_t>(payload);
}

void Sender::load_caches() {
  static const std::array<char, 264> payload{};
  iovec part{const_cast<char*>(payload.data()), payload.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  static_cast<void>(send(message, VMA_SND_FLAGS_DUMMY));
}

// -- for the Extra API

/// Returns null when the kernel sends.
ethernet::Destination* Sender::current_destination(const SocketAddress& address) {
  const bool is_kernels =
      conditions_.kernel_only.load(std::memory_order_relaxed) || (kernel_sends_.load() & ~kPaced) != 0;
  if (is_kernels || address.family() != kernel_.domain() || address.port() == 0) return nullptr;
  ethernet::Destination* const destination = destination_for(address, nullptr);
  return make_current(*destination) ? destination : nullptr;
}

std::shared_ptr<ethernet::Ring> Sender::ring_to(const SocketAddress& address) {
  const std::lock_guard guard(lock_);
  const ethernet::Destination* const destination = current_destination(address);
  return destination != nullptr ? destination->ring() : nullptr;
}

std::vector<std::byte> Sender::headers_to_peer() {
  const std::lock_guard guard(lock_);
  const SocketAddress& peer = flows_.names().peer;
  ethernet::Destination* const destination = peer.is_unspecified() ? nullptr : current_destination(peer);
  if (destination == nullptr) return {};
  std::array<std::byte, ethernet::HeaderTemplate::kMaxBytes> room;
  const auto headers = destination->header().write(room, 0);
  constexpr std::size_t kChecksumBytes = 2;  // the last field of UDP's header: here only the sum of the pseudo header
  std::fill(headers.end() - kChecksumBytes, headers.end(), std::byte{0});
  return {headers.begin(), headers.end()};
}

// -- destinations

/// Returns null when the kernel has to send. `way`: what control data says about the path, or null.
ethernet::Destination* Sender::look_up_destination(const msghdr& message, const SendControl* way) {
  const auto fitting = [&](const SocketAddress& address) -> ethernet::Destination* {
    if (way == nullptr) return destination_for(address, nullptr);
    return address.unmapped().family() == way->family ? destination_for(address, &way->way) : nullptr;
  };
  if (message.msg_name == nullptr)
    return !flows_.names().peer.is_unspecified() ? fitting(flows_.names().peer) : nullptr;
  const auto address = SocketAddress::from(static_cast<const sockaddr*>(message.msg_name), message.msg_namelen);
  return address && address->family() == kernel_.domain() && address->port() != 0 ? fitting(*address) : nullptr;
}

ethernet::Destination* Sender::destination_for(const SocketAddress& address, const ethernet::WayControl* control) {
  if (!destinations_.empty() && destinations_.front().is(address, control)) [[likely]]
    return &destinations_.front();
  return &destinations_.find_or_add(address, control, IPPROTO_UDP);
}

bool Sender::is_left_to_kernel_by_rule(const ethernet::Destination& destination) const {
  const SocketAddress bound = flows_.names().local.unmapped();
  return process().rules().decide(config::VmaRole::udp_sender, destination.address().unmapped(), &bound) ==
         config::VmaTransport::os;
}

/// Takes the way to another port of the destination's host, if that is known. Costs no look at the network's tables.
bool Sender::take_known_way(ethernet::Destination& destination) {
  if (ethernet_ == nullptr) return false;
  const std::uint32_t generation = conditions_.generation.load(std::memory_order_relaxed);
  const auto* const known = destinations_.find_way_for(destination, ethernet_->network(), generation);
  if (known == nullptr || is_left_to_kernel_by_rule(destination)) return false;
  destination.take_way_of(*known);
  return true;
}

/// Returns false when the kernel has to send.
bool Sender::find_way(ethernet::Destination& destination) {
  if (take_known_way(destination)) return true;
  const std::unique_lock setting_up(flows_.setup_lock(), std::try_to_lock);
  if (!setting_up) return false;
  if (flows_.names().local.port() == 0)
    flows_.learn_names();  // the first datagram, sent by the kernel, has bound the socket
  if (flows_.names().local.port() == 0 || flows_.is_kernel_only()) return false;
  ethernet_ = flows_.ethernet();
  if (ethernet_ == nullptr) return false;
  ethernet::bursts().send_all();  // the next datagrams may leave by another ring
  const ethernet::SendOptions& wanted = options(destination.family());
  if (is_left_to_kernel_by_rule(destination)) {
    destination.leave_to_kernel(*ethernet_, options_generation_);
    return false;
  }
  destination.find_way(*ethernet_, flows_.names().local, wanted, options_generation_, choice_);
  if (destination.is_left_to_netfilter()) flows_.note_left_to_netfilter();
  if (destination.ring() == nullptr) return false;
  // Answers also come to a socket that the application has not bound.
  flows_.attach_answers(destination.source(), destination.ring()->interface().ifindex());
  return true;
}

/// Returns the options for destinations of a family. The setup lock is held, too.
const ethernet::SendOptions& Sender::options(int family) {
  const std::uint32_t generation = conditions_.generation.load(std::memory_order_relaxed);
  if (options_generation_ != generation) {
    options_generation_ = generation;
    options_ = {};
  }
  auto& options = options_[family == AF_INET ? 0 : 1];
  if (!options) options = send_options_of(kernel_.fd(), family, flows_.groups().interface(family));
  return *options;
}

void Sender::set_logic(runtime::RingLogic logic, std::uint64_t user_id) {
  const std::lock_guard guard(lock_);
  choice_.set(logic, user_id);
  flows_.note_change();
}

void Sender::forget_after_fork() noexcept {
  destinations_.forget_after_fork();
  ethernet_ = nullptr;
}

}  // namespace ringsock::vma
