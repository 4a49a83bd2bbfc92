#include "libvmacompat/udp/attached_flows.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "core/base/abandon.h"
#include "core/base/log.h"
#include "core/ethernet/interface.h"
#include "libvmacompat/process/vma_process.h"

namespace ringsock::vma {

bool AttachedFlows::attach(const std::shared_ptr<ethernet::Ring>& ring, const verbs::FlowTuple& tuple) {
  if (process().rules().decide(config::VmaRole::udp_receiver, tuple.destination) == config::VmaTransport::os)
    return false;
  Attachment attachment{ring, tuple};
  if (std::find(attachments_.begin(), attachments_.end(), attachment) != attachments_.end()) return true;
  // The ring is polled before anything can come by it.
  if (!rings_.add(ring)) return false;
  if (Status attached = ring->attach(tuple, queue_); !attached) {
    log_info("%s: received by the kernel: %s: %s", tuple.destination.to_string().c_str(), attached.error().where,
             std::strerror(attached.error().code));
    return false;
  }
  if (queue_.wants_time()) ring->want_times();
  attachments_.push_back(std::move(attachment));
  kernel_.expect_datagram();  // earlier datagrams are there
  return true;
}

void AttachedFlows::detach_where(const std::function<bool(const Attachment&)>& is_meant) {
  const std::size_t left = std::erase_if(attachments_, [&](const Attachment& one) {
    const bool goes = is_meant(one);
    if (goes) one.ring->detach(one.tuple, queue_);
    return goes;
  });
  if (left != 0) queue_.put_first();
}

void AttachedFlows::end() {
  for (const Attachment& one : attachments_) one.ring->detach(one.tuple, queue_);
  attachments_.clear();
}

bool AttachedFlows::move(ethernet::Ethernet& ethernet) {
  bool moved = false;
  for (const Attachment& one : std::vector(attachments_)) moved |= has_moved(one, ethernet);
  if (!moved) return false;
  rings_.leave_where_not([this](const auto& ring) {
    return std::any_of(attachments_.begin(), attachments_.end(),
                       [&](const Attachment& one) { return one.ring == ring; });
  });
  return true;
}

/// Moves one flow to its new ring if there is one. The kernel's socket receives what arrives between two rings.
bool AttachedFlows::has_moved(const Attachment& one, ethernet::Ethernet& ethernet) {
  if (one.is_group()) return false;
  const auto ring = ethernet.ring_on(one.ring->interface().ifindex(), queue_.key(one.tuple.destination));
  if (!ring || *ring == one.ring) return false;
  one.ring->detach(one.tuple, queue_);
  std::erase(attachments_, one);
  queue_.put_first();  // until the next attach() the kernel receives
  if (!attach(*ring, one.tuple)) attach(one.ring, one.tuple);
  return true;
}

void AttachedFlows::want_times() {
  for (const Attachment& one : attachments_) one.ring->want_times();
}

std::vector<Attachment> AttachedFlows::groups() const {
  std::vector<Attachment> out;
  std::copy_if(attachments_.begin(), attachments_.end(), std::back_inserter(out),
               [](const Attachment& one) { return one.is_group(); });
  return out;
}

std::vector<std::shared_ptr<ethernet::Ring>> AttachedFlows::rings() const {
  std::vector<std::shared_ptr<ethernet::Ring>> out;
  for (const Attachment& one : attachments_) {
    if (std::find(out.begin(), out.end(), one.ring) == out.end()) out.push_back(one.ring);
  }
  return out;
}

std::shared_ptr<ethernet::Ring> AttachedFlows::ring_of_group(const SocketAddress& group, int ifindex) const {
  const auto is_it = [&](const Attachment& one) {
    return one.is_group() && one.tuple.destination == group && one.ring->interface().ifindex() == ifindex;
  };
  const auto known = std::find_if(attachments_.begin(), attachments_.end(), is_it);
  return known != attachments_.end() ? known->ring : nullptr;
}

void AttachedFlows::forget_after_fork() noexcept { abandon(attachments_); }

}  // namespace ringsock::vma
