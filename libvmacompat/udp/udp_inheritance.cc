#include "libvmacompat/udp/udp_inheritance.h"

#include <algorithm>
#include <mutex>

#include "core/base/log.h"
#include "libvmacompat/process/kernel_return.h"
#include "libvmacompat/udp/sender.h"

namespace ringsock::vma {

namespace {
/// The time between two looks whether other processes still have the socket.
constexpr Nanos kFirstLook = std::chrono::milliseconds(20);
constexpr Nanos kLongestPause = std::chrono::seconds(1);
}  // namespace

void Inheritance::leave_rings() noexcept {
  if (is_inherited_.load(std::memory_order_relaxed)) return;
  if (!family_) family_ = SocketFamily::create();
  if (!family_) log_warn("descriptor %d stays with the kernel: no memory", kernel_.fd());
  was_kernel_only_ = flows_.is_kernel_only() || !family_;
  is_inherited_.store(true, std::memory_order_relaxed);
  look_pause_ = kFirstLook;
  next_look_ = monotonic_now() + look_pause_;
  flows_.give_up();  // no more datagrams come by rings after this
  return_arrivals();
}

void Inheritance::before_fork() {
  leave_rings();
  if (family_) family_->before_fork();
}

void Inheritance::add_stranger() {
  leave_rings();
  if (family_) family_->add_stranger();
}

void Inheritance::enter_child() {
  if (family_) family_->enter_child();
}

void Inheritance::leave() {
  if (family_) family_->leave();
}

/// Returns unread datagrams to the kernel. Those to groups stay, because other members would receive them twice.
void Inheritance::return_arrivals() noexcept {
  ethernet::Ethernet* const ethernet = flows_.known_ethernet();
  if (ethernet == nullptr || !(queue_.has_arrivals() || queue_.whole().has_unseen())) return;
  KernelReturn kernel;
  queue_.give_back([&](ethernet::Arrival& arrival) {
    const auto to = wire::destination_of(arrival.bytes(), arrival.layout, 0);
    return ethernet->network().find_address(net::IpAddress::of(to)).has_value() && kernel.give(arrival);
  });
  kernel_.expect_datagram();
}

void Inheritance::look_for_family() noexcept {
  const PolledRings::News news(rings_);
  const std::unique_lock guard(flows_.setup_lock(), std::try_to_lock);
  if (guard) return_when_alone();
}

void Inheritance::return_when_alone() noexcept {
  if (!is_inherited_.load(std::memory_order_relaxed) || endpoint_.is_closed()) return;
  const Nanos now = monotonic_now();
  if (now < next_look_) return;
  look_pause_ = std::min(2 * look_pause_, kLongestPause);
  next_look_ = now + look_pause_;
  if (!family_ || !family_->is_alone()) return;
  const std::unique_lock sending(sender_.lock(), std::try_to_lock);
  if (!sending) return;
  family_.reset();
  is_inherited_.store(false, std::memory_order_relaxed);
  flows_.set_kernel_only(was_kernel_only_);
  flows_.learn_names();  // another process may have bound or connected it
  flows_.attach_all();
}

}  // namespace ringsock::vma
