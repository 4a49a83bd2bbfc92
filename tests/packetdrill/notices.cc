#include "tests/packetdrill/notices.h"

#include <linux/net_tstamp.h>
#include <netinet/in.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace ringsock::packetdrill {
namespace {

/// Appends a control message. Returns whether it fitted.
bool append(msghdr& message, std::size_t& used, int level, int type, const void* data, std::size_t bytes) {
  if (used + CMSG_SPACE(bytes) > message.msg_controllen) {
    message.msg_flags |= MSG_CTRUNC;
    return false;
  }
  auto* start = static_cast<char*>(message.msg_control) + used;
  cmsghdr head{};
  head.cmsg_len = CMSG_LEN(bytes);
  head.cmsg_level = level;
  head.cmsg_type = type;
  std::memcpy(start, &head, sizeof head);
  std::memcpy(start + CMSG_LEN(0), data, bytes);
  used += CMSG_SPACE(bytes);
  return true;
}

}  // namespace

void Notices::set_time_stamping(std::uint32_t flags) {
  if ((flags & SOF_TIMESTAMPING_OPT_ID) != 0 && (time_stamping & SOF_TIMESTAMPING_OPT_ID) == 0) base_ = total_;
  time_stamping = flags;
}

void Notices::written(std::size_t bytes, int flags) {
  constexpr std::uint32_t kTimes = SOF_TIMESTAMPING_TX_SOFTWARE | SOF_TIMESTAMPING_TX_SCHED | SOF_TIMESTAMPING_TX_ACK;
  const bool copies_nothing = zero_copy && (flags & MSG_ZEROCOPY) != 0, wants_time = (time_stamping & kTimes) != 0;
  total_ += bytes;
  if (bytes != 0 && (copies_nothing || wants_time))
    writes_.push_back({total_, copies_nothing ? next_zero_copy_++ : 0, copies_nothing, wants_time});
}

void Notices::add_time(std::uint32_t kind, std::uint64_t end, Nanos now) {
  sock_extended_err error{};
  error.ee_errno = ENOMSG;
  error.ee_origin = SO_EE_ORIGIN_TIMESTAMPING;
  error.ee_info = kind;
  if ((time_stamping & SOF_TIMESTAMPING_OPT_ID) != 0) error.ee_data = static_cast<std::uint32_t>(end - base_ - 1);
  queue_.push_back({error, now});
}

/// Neighbours become one notice, as on Linux.
void Notices::add_zero_copy(std::uint32_t id) {
  if (!queue_.empty() && queue_.back().error.ee_origin == SO_EE_ORIGIN_ZEROCOPY &&
      queue_.back().error.ee_data + 1 == id) {
    queue_.back().error.ee_data = id;
    return;
  }
  sock_extended_err error{};
  error.ee_origin = SO_EE_ORIGIN_ZEROCOPY;
  error.ee_code = SO_EE_CODE_ZEROCOPY_COPIED;
  error.ee_info = error.ee_data = id;
  queue_.push_back({error, {}});
}

void Notices::progress(std::size_t unsent, std::size_t unacked, Nanos now) {
  for (Write& write : writes_) {
    if (write.sent || write.end > total_ - unsent) continue;
    write.sent = true;
    if (!write.wants_time) continue;
    if ((time_stamping & SOF_TIMESTAMPING_TX_SCHED) != 0) add_time(SCM_TSTAMP_SCHED, write.end, now);
    if ((time_stamping & SOF_TIMESTAMPING_TX_SOFTWARE) != 0) add_time(SCM_TSTAMP_SND, write.end, now);
  }
  while (!writes_.empty() && writes_.front().end <= total_ - unacked) {
    const Write& write = writes_.front();
    if (write.wants_time && (time_stamping & SOF_TIMESTAMPING_TX_ACK) != 0) add_time(SCM_TSTAMP_ACK, write.end, now);
    if (write.zero_copy) add_zero_copy(write.zero_copy_id);
    writes_.pop_front();
  }
}

void Notices::take(msghdr& message, bool v6) {
  const Notice notice = queue_.front();
  queue_.pop_front();
  std::size_t used = 0;
  if (notice.error.ee_origin == SO_EE_ORIGIN_TIMESTAMPING) {
    std::array<timespec, 3> times{};
    times[0].tv_sec = std::chrono::duration_cast<std::chrono::seconds>(notice.when).count();
    times[0].tv_nsec = (notice.when % std::chrono::seconds(1)).count();
    append(message, used, SOL_SOCKET, SO_TIMESTAMPING, &times, sizeof times);
  }
  // The address of the sender of an ICMP message follows; there is none.
  std::array<char, sizeof(sock_extended_err) + sizeof(sockaddr_in6)> data{};
  std::memcpy(data.data(), &notice.error, sizeof notice.error);
  append(message, used, v6 ? IPPROTO_IPV6 : IPPROTO_IP, v6 ? IPV6_RECVERR : IP_RECVERR, data.data(),
         sizeof notice.error + (v6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in)));
  message.msg_controllen = used;
  message.msg_flags |= MSG_ERRQUEUE;
}

}  // namespace ringsock::packetdrill
