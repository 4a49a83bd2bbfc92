#include "libvmacompat/udp/datagram_queue.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "core/base/abandon.h"
#include "core/base/thread_id.h"
#include "libvmacompat/udp/udp_options.h"

namespace ringsock::vma {

namespace {

using Count = runtime::VmaSocketCount;
using Level = runtime::VmaSocketLevel;
/// What a waiting datagram counts beside its payload, because empty datagrams take memory, too.
constexpr std::size_t kBytesBesidePayload = 64;

/// Returns the number of bytes copied.
[[gnu::always_inline]] inline std::size_t copy(std::span<const std::byte> payload, const iovec& part) {
  const std::size_t bytes = std::min(payload.size(), part.iov_len);
  if (bytes != 0) std::memcpy(part.iov_base, payload.data(), bytes);
  return bytes;
}
[[gnu::noinline]] std::size_t copy_to_parts(std::span<const std::byte> payload, std::span<const iovec> parts) {
  std::size_t done = 0;
  for (const iovec& part : parts) done += copy(payload.subspan(done), part);
  return done;
}
[[gnu::always_inline]] inline std::size_t scatter(std::span<const std::byte> payload, const msghdr& message) {
  if (message.msg_iovlen == 1) [[likely]]
    return copy(payload, *message.msg_iov);
  return copy_to_parts(payload, {message.msg_iov, message.msg_iovlen});
}

}  // namespace

ReceiveQueue::ReceiveQueue(KernelSocket& kernel, runtime::Endpoint& endpoint, runtime::VmaSocketStatistics& statistics,
                           runtime::RingChoice choice, std::size_t limit)
    : kernel_(kernel),
      endpoint_(endpoint),
      statistics_(statistics),
      domain_(kernel.domain()),
      choice_(choice),
      limit_(limit) {}

void ReceiveQueue::set_peer(const std::optional<wire::EndName>& peer) {
  if (peer) peer_ = *peer;
  is_connected_.store(peer.has_value(), std::memory_order_release);
}

// The functions on the path of each datagram are inlined into one.

[[gnu::always_inline]] inline void ReceiveQueue::count_received(std::size_t bytes) {
  runtime::VmaSocketSlot& slot = statistics_.slot();
  runtime::add_relaxed(slot[Count::rx_packets], 1);
  runtime::add_relaxed(slot[Count::rx_bytes], bytes);
  slot[Level::rx_thread].store(this_thread_id(), std::memory_order_relaxed);
  if (choice_.should_move()) is_move_due_.store(true, std::memory_order_relaxed);
  if (has_slept_.load(std::memory_order_relaxed)) {
    has_slept_.store(false, std::memory_order_relaxed);
  } else {
    runtime::add_relaxed(slot[Count::poll_hits], 1);
  }
}

/// Copies a datagram to the application, as recvmsg(2) does, and returns the result of that call.
[[gnu::always_inline]] inline ssize_t ReceiveQueue::give(const ethernet::Packet& datagram, msghdr& message, int flags) {
  const auto payload = datagram.payload;
  const std::size_t copied = scatter(payload, message);
  message.msg_flags = copied < payload.size() ? MSG_TRUNC : 0;
  if (message.msg_name != nullptr) {
    wire::copy_source(datagram.headers, datagram.layout, datagram.ifindex, domain_,
                      static_cast<sockaddr*>(message.msg_name), message.msg_namelen);
  }
  if (message.msg_control != nullptr) {
    write_control(options_, datagram, options_.overflow ? all_drops() : 0, message);
  } else {
    message.msg_controllen = 0;
  }
  if ((flags & MSG_PEEK) == 0) count_received(payload.size());
  return static_cast<ssize_t>((flags & MSG_TRUNC) != 0 ? payload.size() : copied);
}

Result<ssize_t> ReceiveQueue::take(msghdr& message, int flags) {
  const std::lock_guard guard(lock_);
  if (arrivals_.empty()) return Error{EAGAIN, "recvmsg"};  // another thread has taken it
  const ssize_t answer = give(arrivals_.front().packet(), message, flags);
  if ((flags & MSG_PEEK) != 0) return answer;
  pop_first(false);
  return answer;
}

/// Drops the oldest datagram.
void ReceiveQueue::pop_first(bool is_received) {
  if (is_received) count_received(arrivals_.front().layout.payload_bytes);
  arrivals_.pop();
  if (const std::size_t older = older_.load(std::memory_order_relaxed); older != 0) [[unlikely]]
    older_.store(older - 1, std::memory_order_relaxed);
  show();
  if (arrivals_.empty()) has_arrivals_.store(false, std::memory_order_relaxed);
}

ethernet::Delivery ReceiveQueue::deliver(ethernet::Incoming& incoming, const wire::EndName& source) noexcept {
  if (!accepts(source)) return ethernet::Delivery::refused;
  // The ring's lock does not suffice: the socket's other rings deliver at the same time.
  const std::lock_guard guard(lock_);
  if (is_special_) [[unlikely]] {
    if (const auto done = whole_.deliver(incoming)) return *done;
  }
  auto* const call = static_cast<WaitingReceive*>(incoming.call_of(*this));
  if (call == nullptr || !arrivals_.empty()) return whole_.hand_out_or_keep(incoming);
  call->answer = give(incoming.packet(), call->message, call->flags);
  call->is_served = true;
  return ethernet::Delivery::done;
}

/// Out of line, so that the path of a datagram to a waiting call is short.
[[gnu::noinline]] ethernet::Delivery WholeDatagrams::hand_out_or_keep(ethernet::Incoming& incoming) {
  const auto handed_out = hand_out(incoming);
  if (!handed_out) return queue_.keep(incoming, queue_.arrivals_, queue_.has_arrivals_);
  queue_.count_received(*handed_out);
  return ethernet::Delivery::done;
}

[[gnu::noinline]] ethernet::Delivery WholeDatagrams::put_into_cyclic(const ethernet::Packet& packet) {
  if (!cyclic_->put(packet)) {
    queue_.statistics_.count(Count::ready_packets_dropped);
    queue_.statistics_.count(Count::ready_bytes_dropped, packet.payload.size());
    return ethernet::Delivery::done;
  }
  queue_.count_received(packet.payload.size());
  cyclic_waits_.store(true, std::memory_order_relaxed);
  queue_.endpoint_.note_activity();
  return ethernet::Delivery::waits;
}

/// Puts a datagram into a queue, or drops it when there is no room.
ethernet::Delivery ReceiveQueue::keep(ethernet::Incoming& incoming, ethernet::ArrivalQueue& where,
                                      std::atomic<bool>& hint) {
  const std::size_t bytes = incoming.packet().payload.size();
  const std::size_t waiting = where.payload_bytes() + kBytesBesidePayload * where.count();
  auto arrival = waiting + bytes > limit_ && !where.empty() ? std::nullopt : incoming.keep();
  if (!arrival) {
    statistics_.count(Count::ready_packets_dropped);
    statistics_.count(Count::ready_bytes_dropped, bytes);
    return ethernet::Delivery::done;
  }
  where.push(*std::move(arrival));
  show();
  statistics_.raise(Level::ready_packets_max, arrivals_.count());
  statistics_.raise(Level::ready_bytes_max, arrivals_.payload_bytes());
  hint.store(true, std::memory_order_relaxed);
  endpoint_.note_activity();
  return ethernet::Delivery::waits;
}

/// Shows in the statistics what waits.
void ReceiveQueue::show() {
  statistics_.set(Level::ready_packets, arrivals_.count());
  statistics_.set(Level::ready_bytes, arrivals_.payload_bytes());
}

/// Returns whether the membership does not accept the datagram's sender.
bool ReceiveQueue::is_filtered(const ethernet::Packet& datagram) const {
  const auto group = net::IpAddress::of(wire::destination_of(datagram.headers, datagram.layout, 0));
  const auto is_it = [&](const Membership& one) { return one.ifindex == datagram.ifindex && one.group == group; };
  const auto filter = std::find_if(source_filters_.begin(), source_filters_.end(), is_it);
  return filter != source_filters_.end() &&
         !filter->wants_from(net::IpAddress::of(wire::source_of(datagram.headers, datagram.layout, 0)));
}

std::optional<int> ReceiveQueue::next_bytes() {
  const std::lock_guard guard(lock_);
  if (arrivals_.empty()) return std::nullopt;
  return static_cast<int>(arrivals_.front().layout.payload_bytes);
}

void ReceiveQueue::put_first() {
  const std::lock_guard guard(lock_);
  older_.store(arrivals_.count(), std::memory_order_relaxed);
}

void ReceiveQueue::give_back(const std::function<bool(ethernet::Arrival&)>& take) {
  const std::lock_guard guard(lock_);
  whole_.queue_unseen();  // the kernel's datagrams have no callback
  for (std::size_t left = arrivals_.count(); left > 0; --left) {
    ethernet::Arrival arrival = arrivals_.front();
    arrivals_.pop();
    if (!take(arrival)) arrivals_.push(std::move(arrival));
  }
  show();
  has_arrivals_.store(!arrivals_.empty(), std::memory_order_relaxed);
}

// -- drops ---------------------------------------------------------------------------------------------

std::uint32_t ReceiveQueue::drops_of_rings() const {
  return static_cast<std::uint32_t>(statistics_.value(Count::ready_packets_dropped));
}

std::uint32_t ReceiveQueue::all_drops() const {
  const std::uint32_t by_rings = drops_of_rings();
  return kernel_.counts_copies() ? by_rings : by_rings + kernel_drops_of(kernel_.fd());
}

void ReceiveQueue::correct_drops(msghdr& message, std::size_t room, int flags) const {
  if (tells_drops_.load(std::memory_order_relaxed) && room != 0 && (flags & MSG_ERRQUEUE) == 0)
    add_drops(message, room, drops_of_rings(), !kernel_.counts_copies());
}

// -- options -------------------------------------------------------------------------------------------

bool ReceiveQueue::note_option(int level, int name, const void* value, socklen_t length) {
  const std::lock_guard guard(lock_);
  if (!options_.note(level, name, value, length)) return false;
  tells_drops_.store(options_.overflow, std::memory_order_relaxed);
  return true;
}

bool ReceiveQueue::wants_time() {
  const std::lock_guard guard(lock_);
  return options_.wants_time();
}

void ReceiveQueue::set_limit(std::size_t bytes) {
  const std::lock_guard guard(lock_);
  limit_ = bytes;
}

std::size_t ReceiveQueue::limit() {
  const std::lock_guard guard(lock_);
  return limit_;
}

void ReceiveQueue::set_source_filters(const std::vector<Membership>& memberships) {
  const std::lock_guard guard(lock_);
  source_filters_.clear();
  std::copy_if(memberships.begin(), memberships.end(), std::back_inserter(source_filters_),
               [](const Membership& one) { return !one.wants_all(); });
  whole_.note_special();
}

// -- the choice of rings -------------------------------------------------------------------------------

void ReceiveQueue::move_here() {
  const std::lock_guard guard(lock_);
  is_move_due_.store(false, std::memory_order_relaxed);
  choice_.move_here();
}

void ReceiveQueue::forget_place() {
  const std::lock_guard guard(lock_);
  choice_.forget_place();
}

void ReceiveQueue::set_logic(runtime::RingLogic logic, std::uint64_t user_id) {
  const std::lock_guard guard(lock_);
  choice_.set(logic, user_id);
}

runtime::RingKey ReceiveQueue::key(const SocketAddress& local) {
  const std::lock_guard guard(lock_);
  return choice_.key(local);
}

std::uint64_t ReceiveQueue::ring_user_id() {
  const std::lock_guard guard(lock_);
  return choice_.user_id();
}

void ReceiveQueue::forget_after_fork() noexcept {
  abandon(arrivals_);
  has_arrivals_.store(false, std::memory_order_relaxed);
  whole_.forget_after_fork();
}

}  // namespace ringsock::vma
