#include "core/net/netfilter_watch.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <netlink/attr.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>

#include "core/base/log.h"
#include "core/net/network_state.h"

namespace ringsock::net {

namespace {

constexpr int kDumpAttempts = 16;
constexpr int kDatagramsAtOnce = 64;
/// Older iptables and IPVS send no events.
constexpr time_t kSecondsBetweenLooks = 1;
constexpr int kDevicePrefixAttribute = 2;  // NFTA_DEVICE_PREFIX, Linux 6.16
constexpr int kInetIngress = 5;            // NF_INET_INGRESS, Linux 5.10

std::uint32_t number_of(const nlattr* attribute, std::uint32_t otherwise) {
  if (attribute == nullptr || nla_len(attribute) < static_cast<int>(sizeof(std::uint32_t))) return otherwise;
  std::uint32_t big_endian = 0;
  std::memcpy(&big_endian, nla_data(attribute), sizeof big_endian);
  return ntohl(big_endian);
}

std::string text_of(const nlattr* attribute) {
  if (attribute == nullptr || nla_len(attribute) <= 0) return {};
  const auto* const text = static_cast<const char*>(nla_data(attribute));
  return {text, ::strnlen(text, static_cast<std::size_t>(nla_len(attribute)))};
}

template <std::size_t count>
std::array<const nlattr*, count> parts_of(const nlattr* first, int bytes) {
  std::array<const nlattr*, count> out{};
  for (int left = bytes; nla_ok(first, left); first = nla_next(first, &left)) {
    if (const auto type = static_cast<std::size_t>(nla_type(first)); type < count) out[type] = first;
  }
  return out;
}

/// Returns the devices of a chain. A prefix of device names ends in *.
std::vector<std::string> devices_of(const std::array<const nlattr*, NFTA_HOOK_DEVS + 1>& hook) {
  std::vector<std::string> out;
  if (std::string one = text_of(hook[NFTA_HOOK_DEV]); !one.empty()) out.push_back(std::move(one));
  const nlattr* const list = hook[NFTA_HOOK_DEVS];
  if (list == nullptr) return out;
  const auto* one = static_cast<const nlattr*>(nla_data(list));
  for (int left = nla_len(list); nla_ok(one, left); one = nla_next(one, &left)) {
    std::string name = text_of(one);
    if (nla_type(one) == kDevicePrefixAttribute) name += '*';
    if (!name.empty() && std::find(out.begin(), out.end(), name) == out.end()) out.push_back(std::move(name));
  }
  return out;
}

/// Returns the address family of the packets that pass a hook of that nf_tables family (AF_UNSPEC: both), or nothing
/// when this host neither receives nor sends such packets.
std::optional<int> packets_of(std::uint8_t family, std::uint32_t hook) {
  if (family == NFPROTO_NETDEV) return AF_UNSPEC;
  if (family == NFPROTO_INET && hook == kInetIngress) return AF_UNSPEC;
  if (hook > NF_INET_POST_ROUTING || hook == NF_INET_FORWARD) return std::nullopt;
  switch (family) {
    case NFPROTO_INET: return AF_UNSPEC;
    case NFPROTO_IPV4: return AF_INET;
    case NFPROTO_IPV6: return AF_INET6;
    default: return std::nullopt;
  }
}

NetlinkMessage question_for_chains() {
  nfgenmsg header{};
  header.nfgen_family = NFPROTO_UNSPEC;
  header.version = NFNETLINK_V0;
  return make_message(NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETCHAIN, NLM_F_DUMP, header);
}

/// Returns whether the message may change what happens to packets.
bool is_of_interest(const nlmsghdr& message) {
  if (message.nlmsg_type >> 8 != NFNL_SUBSYS_NFTABLES) return false;
  switch (message.nlmsg_type & 0xff) {
    case NFT_MSG_NEWTABLE:
    case NFT_MSG_DELTABLE:
    case NFT_MSG_NEWCHAIN:
    case NFT_MSG_DELCHAIN:
    case NFT_MSG_NEWRULE:
    case NFT_MSG_DELRULE: return true;
    default: return false;  // such as changes of the elements of sets, which are frequent
  }
}

std::string own_namespace() {
  std::array<char, 64> text{};
  const ssize_t length = ::readlink("/proc/thread-self/ns/net", text.data(), text.size());
  return length > 0 ? std::string(text.data(), static_cast<std::size_t>(length)) : std::string();
}

PacketFilter unseen_filter(int family) { return {family, "", std::string(kUnseenFilters)}; }

}  // namespace

bool PacketFilter::concerns(int packets_family, std::string_view packets_device) const {
  if (family != AF_UNSPEC && family != packets_family) return false;
  if (device.empty()) return true;
  if (device.back() != '*') return device == packets_device;
  return packets_device.starts_with(std::string_view(device).substr(0, device.size() - 1));
}

std::vector<PacketFilter> filters_of_chain(const nlmsghdr& message) {
  std::vector<PacketFilter> out;
  if (message.nlmsg_type != (NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWCHAIN)) return out;
  const auto* const header = static_cast<const nfgenmsg*>(nlmsg_data(&message));
  if (nlmsg_datalen(&message) < static_cast<int>(sizeof *header)) return out;
  const auto chain =
      parts_of<NFTA_CHAIN_MAX + 1>(nlmsg_attrdata(&message, sizeof *header), nlmsg_attrlen(&message, sizeof *header));
  const nlattr* const hook_part = chain[NFTA_CHAIN_HOOK];
  if (hook_part == nullptr) return out;  // a chain that is only jumped to
  const bool may_act = number_of(chain[NFTA_CHAIN_USE], 1) != 0 ||
                       number_of(chain[NFTA_CHAIN_POLICY], NF_ACCEPT) != NF_ACCEPT ||
                       text_of(chain[NFTA_CHAIN_TYPE]) == "nat";
  const auto hook = parts_of<NFTA_HOOK_DEVS + 1>(static_cast<const nlattr*>(nla_data(hook_part)), nla_len(hook_part));
  const auto family = packets_of(header->nfgen_family, number_of(hook[NFTA_HOOK_HOOKNUM], 0));
  if (!may_act || !family) return out;
  const std::string name =
      "nftables chain " + text_of(chain[NFTA_CHAIN_NAME]) + " of table " + text_of(chain[NFTA_CHAIN_TABLE]);
  for (const std::string& device : devices_of(hook)) out.push_back({*family, device, name});
  if (out.empty()) out.push_back({*family, "", name});
  return out;
}

std::vector<PacketFilter> filters_of_tables(int family, std::string_view names) {
  std::vector<PacketFilter> out;
  while (!names.empty()) {
    const std::size_t end = std::min(names.find('\n'), names.size());
    const std::string_view table = names.substr(0, end);
    names.remove_prefix(std::min(end + 1, names.size()));
    if (!table.empty()) out.push_back({family, "", "iptables (legacy) table " + std::string(table)});
  }
  return out;
}

bool has_virtual_services(std::string_view list) {
  for (const std::string_view protocol : {"\nTCP ", "\nUDP ", "\nSCTP ", "\nFWM "}) {
    if (list.find(protocol) != std::string_view::npos) return true;
  }
  return false;
}

void NetfilterWatch::ProcFile::open() {
  fd_ = out_of_the_way(UniqueFd(::open(path_, O_RDONLY | O_CLOEXEC)));
  is_forbidden_ = !fd_ && (errno == EACCES || errno == EPERM);
}

std::string NetfilterWatch::ProcFile::read() const {
  std::string out;
  std::array<char, 4096> part;
  constexpr off_t kEnough = 1 << 20;
  for (off_t at = 0; fd_ && at < kEnough;) {
    const ssize_t got = ::pread(fd_.get(), part.data(), part.size(), at);
    if (got <= 0) break;
    out.append(part.data(), static_cast<std::size_t>(got));
    at += got;
  }
  return out;
}

Status NetfilterWatch::open_sockets() {
  auto questions = NetlinkSocket::open(NETLINK_NETFILTER);
  if (!questions) return questions.error();
  auto events = NetlinkSocket::open(NETLINK_NETFILTER);
  if (!events) return events.error();
  constexpr std::array kGroups = {static_cast<int>(NFNLGRP_NFTABLES)};
  static_cast<void>(events->listen(kGroups));  // a process that may not listen may not ask either
  questions_ = std::move(*questions);
  events_ = std::move(*events);
  return ok();
}

void NetfilterWatch::open() {
  questions_ = {};
  events_ = {};
  place_ = own_namespace();
  for (ProcFile* const file : {&tables_v4_, &tables_v6_, &services_}) file->open();
  has_sockets_ = open_sockets();
  timer_ = out_of_the_way(UniqueFd(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)));
  const itimerspec each{{kSecondsBetweenLooks, 0}, {kSecondsBetweenLooks, 0}};
  if (timer_) ::timerfd_settime(timer_.get(), 0, &each, nullptr);
  // Asked after the listening began, so that no later change is missed.
  auto chains = ask_for_chains(), others = look_for_others();
  const std::lock_guard guard(lock_);
  chains_ = std::move(chains);
  others_ = std::move(others);
}

std::vector<PacketFilter> NetfilterWatch::ask_for_chains() {
  if (!has_sockets_ && has_sockets_.error().code == EPROTONOSUPPORT) return {};  // the kernel has no netfilter
  if (!has_sockets_) return {unseen_filter(AF_UNSPEC)};
  for (int attempt = 1; attempt <= kDumpAttempts; ++attempt) {
    std::vector<PacketFilter> found;
    const Status status = questions_.ask(question_for_chains().get(), [&found](const nlmsghdr& message) {
      for (PacketFilter& one : filters_of_chain(message)) {
        const auto is_same = [&](const PacketFilter& other) {
          return other.family == one.family && other.device == one.device;
        };
        if (std::none_of(found.begin(), found.end(), is_same)) found.push_back(std::move(one));
      }
    });
    if (status) return found;
    if (status.error().code == EPERM) return {unseen_filter(AF_UNSPEC)};
    if (status.error().code == EINVAL) return {};  // the kernel has no nf_tables
    if (status.error().code == EAGAIN) continue;
    log_debug("netfilter: %s: error %d", status.error().where, status.error().code);
    if (auto fresh = NetlinkSocket::open(NETLINK_NETFILTER); fresh && own_namespace() == place_)
      questions_ = std::move(*fresh);
  }
  return {{AF_UNSPEC, "", "nftables rules that could not be read"}};
}

std::vector<PacketFilter> NetfilterWatch::look_for_others() {
  const bool is_here = own_namespace() == place_;
  for (ProcFile* const file : {&tables_v4_, &tables_v6_, &services_}) {
    if (!file->is_open() && is_here) file->open();
  }
  std::vector<PacketFilter> out;
  for (const auto& [family, file] : {std::pair(AF_INET, &tables_v4_), std::pair(AF_INET6, &tables_v6_)}) {
    if (file->is_forbidden()) out.push_back(unseen_filter(family));
    const auto tables = filters_of_tables(family, file->read());
    out.insert(out.end(), tables.begin(), tables.end());
  }
  if (has_virtual_services(services_.read())) out.push_back({AF_UNSPEC, "", "IPVS services"});
  return out;
}

/// Reads events. @return whether any of interest was among them, or may have been lost. Unread events make fd()
/// readable again.
bool NetfilterWatch::take_events() {
  bool any = false, more = static_cast<bool>(events_);
  const auto note = [&any](const nlmsghdr& message) { any = any || is_of_interest(message); };
  for (int i = 0; more && i < kDatagramsAtOnce; ++i) {
    const auto got = events_.read_events(note);
    any = any || !got;  // some were lost
    more = !got || *got;
  }
  return any;
}

bool NetfilterWatch::read() {
  std::uint64_t expirations = 0;
  const bool is_due = timer_ && ::read(timer_.get(), &expirations, sizeof expirations) > 0;
  const bool chains_changed = take_events();
  if (!is_due && !chains_changed) return false;
  auto chains = chains_changed ? ask_for_chains() : std::vector<PacketFilter>();
  auto others = look_for_others();
  const std::lock_guard guard(lock_);
  if (!chains_changed) chains = chains_;  // only this thread writes them
  if (chains == chains_ && others == others_) return false;
  chains_ = std::move(chains);
  others_ = std::move(others);
  return true;
}

std::optional<std::string> NetfilterWatch::filter_of(int family, std::string_view device) const {
  const std::lock_guard guard(lock_);
  for (const auto* const all : {&chains_, &others_}) {
    const auto found =
        std::find_if(all->begin(), all->end(), [&](const PacketFilter& one) { return one.concerns(family, device); });
    if (found != all->end()) return found->name;
  }
  return std::nullopt;
}

}  // namespace ringsock::net
