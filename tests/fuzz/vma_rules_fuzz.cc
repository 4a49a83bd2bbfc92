// A libvma.conf as an administrator, or a disk, may have left it; and the same text given to add_conf_rule().
#include <sys/socket.h>

#include <cstdlib>
#include <string>

#include "core/config/vma_rules.h"

using namespace ringsock;
using config::VmaRole;
using config::VmaRules;
using config::VmaTransport;

namespace {

constexpr VmaRole kRoles[] = {VmaRole::tcp_server, VmaRole::tcp_client, VmaRole::udp_receiver, VmaRole::udp_sender,
                              VmaRole::udp_connect};

void require(bool holds) {
  if (!holds) std::abort();
}

/// A socket that was left to the kernel never turns out to be ours.
void ask(const VmaRules& rules) {
  const bool tcp = rules.decide_socket(SOCK_STREAM) == VmaTransport::vma;
  const bool udp = rules.decide_socket(SOCK_DGRAM) == VmaTransport::vma;
  for (const std::uint16_t port : {std::uint16_t{0}, std::uint16_t{80}, std::uint16_t{65535}}) {
    const SocketAddress local = SocketAddress::v4(0x0a000001, port);
    for (const SocketAddress& address : {local, SocketAddress::v6(in6addr_loopback, port)}) {
      for (const VmaRole role : kRoles) {
        const bool ours = rules.decide(role, address, &local) == VmaTransport::vma;
        const bool is_tcp = role == VmaRole::tcp_server || role == VmaRole::tcp_client;
        if (ours && role != VmaRole::udp_connect) require(is_tcp ? tcp : udp);
      }
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  int reports = 0;
  const config::Report report = [&](const std::string& line) {
    require(line.find('\n') == std::string::npos);
    ++reports;
  };
  VmaRules rules("p", "id");
  rules.parse(text, "F", report);
  ask(rules);
  reports = 0;
  require(rules.add(text, report) || reports == 1);
  ask(rules);
  require(bool(rules.add("use os udp_sender *:80", report)));
  require(bool(rules.add("application-id p *", report)));
  require(bool(rules.add("use os udp_sender *:80", report)));
  require(rules.decide(VmaRole::udp_sender, SocketAddress::v4(1, 80)) == VmaTransport::os);
  return 0;
}
