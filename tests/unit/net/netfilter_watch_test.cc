// Which chains, tables and services concern packets that this host receives or sends.
#include "core/net/netfilter_watch.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <netlink/msg.h>
#include <sys/socket.h>

namespace ringsock::net {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

struct Chain {
  std::uint8_t family = NFPROTO_INET;
  std::uint32_t hook = NF_INET_LOCAL_IN;
  std::uint32_t rules = 1;
  std::uint32_t policy = NF_ACCEPT;
  const char* type = "filter";
  std::vector<std::string> devices{};
  bool is_base = true;
  int message_type = NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWCHAIN;
};

NetlinkMessage message_of(const Chain& chain) {
  const nfgenmsg header{.nfgen_family = chain.family, .version = NFNETLINK_V0, .res_id = 0};
  NetlinkMessage message = make_message(chain.message_type, 0, header);
  nl_msg* const out = message.get();
  EXPECT_EQ(nla_put_string(out, NFTA_CHAIN_TABLE, "t"), 0);
  EXPECT_EQ(nla_put_string(out, NFTA_CHAIN_NAME, "c"), 0);
  if (chain.is_base) {
    nlattr* const hook = nla_nest_start(out, NFTA_CHAIN_HOOK);
    EXPECT_EQ(nla_put_u32(out, NFTA_HOOK_HOOKNUM, htonl(chain.hook)), 0);
    if (chain.devices.size() == 1) {
      EXPECT_EQ(nla_put_string(out, NFTA_HOOK_DEV, chain.devices[0].c_str()), 0);
    }
    nlattr* const devices = nla_nest_start(out, NFTA_HOOK_DEVS);
    for (const std::string& name : chain.devices) {
      // One with a * behind it is a prefix, Linux 6.16.
      const bool is_prefix = name.back() == '*';
      const std::string text = is_prefix ? name.substr(0, name.size() - 1) : name;
      EXPECT_EQ(nla_put_string(out, is_prefix ? 2 : 1, text.c_str()), 0);
    }
    nla_nest_end(out, devices);
    nla_nest_end(out, hook);
    EXPECT_EQ(nla_put_u32(out, NFTA_CHAIN_POLICY, htonl(chain.policy)), 0);
    EXPECT_EQ(nla_put_string(out, NFTA_CHAIN_TYPE, chain.type), 0);
  }
  EXPECT_EQ(nla_put_u32(out, NFTA_CHAIN_USE, htonl(chain.rules)), 0);
  return message;
}

std::vector<PacketFilter> filters_of(const Chain& chain) {
  return filters_of_chain(*nlmsg_hdr(message_of(chain).get()));
}
PacketFilter of_chain(int family, const char* device = "") { return {family, device, "nftables chain c of table t"}; }

TEST(FiltersOfChain, AreOfItsFamilyWhereItHasRules) {
  EXPECT_THAT(filters_of({}), ElementsAre(of_chain(AF_UNSPEC)));
  EXPECT_THAT(filters_of({.family = NFPROTO_IPV4}), ElementsAre(of_chain(AF_INET)));
  EXPECT_THAT(filters_of({.family = NFPROTO_IPV6}), ElementsAre(of_chain(AF_INET6)));
  for (const std::uint32_t hook : {NF_INET_PRE_ROUTING, NF_INET_LOCAL_OUT, NF_INET_POST_ROUTING})
    EXPECT_THAT(filters_of({.hook = hook}), ElementsAre(of_chain(AF_UNSPEC))) << hook;
}

TEST(FiltersOfChain, AreNoneWhereNothingCanHappenToOurs) {
  EXPECT_THAT(filters_of({.rules = 0}), IsEmpty());
  EXPECT_THAT(filters_of({.hook = NF_INET_FORWARD}), IsEmpty());
  EXPECT_THAT(filters_of({.family = NFPROTO_BRIDGE}), IsEmpty());
  EXPECT_THAT(filters_of({.family = NFPROTO_ARP}), IsEmpty());
  EXPECT_THAT(filters_of({.is_base = false}), IsEmpty());
  EXPECT_THAT(filters_of({.message_type = NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWRULE}), IsEmpty());
}

TEST(FiltersOfChain, AreThereWithoutRulesForAPolicyAndForTranslations) {
  EXPECT_THAT(filters_of({.rules = 0, .policy = NF_DROP}), ElementsAre(of_chain(AF_UNSPEC)));
  EXPECT_THAT(filters_of({.rules = 0, .type = "nat"}), ElementsAre(of_chain(AF_UNSPEC)));
}

TEST(FiltersOfChain, AreOfItsDevices) {
  EXPECT_THAT(filters_of({.family = NFPROTO_NETDEV, .hook = NF_NETDEV_INGRESS, .devices = {"eth0"}}),
              ElementsAre(of_chain(AF_UNSPEC, "eth0")));
  EXPECT_THAT(filters_of({.hook = NF_INET_INGRESS, .devices = {"eth0", "eth1"}}),
              ElementsAre(of_chain(AF_UNSPEC, "eth0"), of_chain(AF_UNSPEC, "eth1")));
  EXPECT_THAT(filters_of({.family = NFPROTO_NETDEV, .hook = NF_NETDEV_INGRESS, .devices = {"veth*", "eth0"}}),
              ElementsAre(of_chain(AF_UNSPEC, "veth*"), of_chain(AF_UNSPEC, "eth0")));
}

TEST(FiltersOfChain, OfAMessageThatIsCutShortAreNoneOrOfAll) {
  const NetlinkMessage whole = message_of({});
  for (std::uint32_t length = NLMSG_HDRLEN; length < nlmsg_hdr(whole.get())->nlmsg_len; ++length) {
    std::vector<char> bytes(length);
    std::memcpy(bytes.data(), nlmsg_hdr(whole.get()), length);
    auto& header = *reinterpret_cast<nlmsghdr*>(bytes.data());
    header.nlmsg_len = length;
    EXPECT_LE(filters_of_chain(header).size(), 1U);
  }
}

TEST(PacketFilter, ConcernsItsFamilyAndDevice) {
  EXPECT_TRUE((PacketFilter{AF_UNSPEC, "", ""}.concerns(AF_INET6, "eth0")));
  EXPECT_FALSE((PacketFilter{AF_INET, "", ""}.concerns(AF_INET6, "eth0")));
  EXPECT_TRUE((PacketFilter{AF_UNSPEC, "eth0", ""}.concerns(AF_INET, "eth0")));
  EXPECT_FALSE((PacketFilter{AF_UNSPEC, "eth0", ""}.concerns(AF_INET, "eth01")));
  EXPECT_TRUE((PacketFilter{AF_UNSPEC, "eth*", ""}.concerns(AF_INET, "eth01")));
  EXPECT_FALSE((PacketFilter{AF_UNSPEC, "eth*", ""}.concerns(AF_INET, "veth0")));
}

TEST(FiltersOfTables, AreOneForEach) {
  EXPECT_THAT(filters_of_tables(AF_INET, ""), IsEmpty());
  EXPECT_THAT(filters_of_tables(AF_INET6, "nat\nfilter\n"),
              ElementsAre(PacketFilter{AF_INET6, "", "iptables (legacy) table nat"},
                          PacketFilter{AF_INET6, "", "iptables (legacy) table filter"}));
}

TEST(VirtualServices, AreLinesBehindTheHead) {
  constexpr std::string_view kHead =
      "IP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port Scheduler Flags\n"
      "  -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n";
  EXPECT_FALSE(has_virtual_services(""));
  EXPECT_FALSE(has_virtual_services(kHead));
  EXPECT_TRUE(has_virtual_services(std::string(kHead) + "UDP  0A600001:0035 rr  \n"));
  EXPECT_TRUE(has_virtual_services(std::string(kHead) + "FWM  00000001 rr  \n"));
}

}  // namespace
}  // namespace ringsock::net
