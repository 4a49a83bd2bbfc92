#include "core/net/ipsec_watch.h"

#include <linux/xfrm.h>
#include <netlink/attr.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

namespace ringsock::net {

void IpsecWatch::open() {
  questions_ = {};
  events_ = {};
  any_ = false;
  auto questions = NetlinkSocket::open(NETLINK_XFRM);
  auto events = NetlinkSocket::open(NETLINK_XFRM);
  constexpr std::array kGroups = {static_cast<int>(XFRMNLGRP_POLICY)};
  if (!questions || !events || !events->listen(kGroups)) return;
  questions_ = std::move(*questions);
  events_ = std::move(*events);
  any_ = count_policies();
}

bool IpsecWatch::count_policies() {
  xfrmu_spdinfo counts{};
  const auto take = [&counts](const nlmsghdr& message) {
    const nlattr* info = nlmsg_find_attr(const_cast<nlmsghdr*>(&message), sizeof(std::uint32_t), XFRMA_SPD_INFO);
    if (info != nullptr && nla_len(info) >= static_cast<int>(sizeof counts)) {
      std::memcpy(&counts, nla_data(info), sizeof counts);
    }
  };
  const std::uint32_t flags = 0;
  const NetlinkMessage question = make_message(XFRM_MSG_GETSPDINFO, 0, flags);
  return questions_.ask(question.get(), take) && counts.incnt + counts.outcnt > 0;
}

bool IpsecWatch::read() {
  if (!events_) return false;
  bool something = false;
  for (bool more = true; more;) {
    const auto got = events_.read_events([](const nlmsghdr&) {});
    more = !got || *got;  // a loss of events counts as an event
    something = something || more;
  }
  if (!something) return false;
  const bool before = any_.exchange(count_policies(), std::memory_order_relaxed);
  return before != any_policies();
}

}  // namespace ringsock::net
