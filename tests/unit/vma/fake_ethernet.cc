#include "tests/unit/vma/fake_ethernet.h"

#include <net/if.h>
#include <net/if_arp.h>

#include <utility>

#include "libvmacompat/process/rings_of_process.h"

namespace ringsock {

namespace {
fakes::FakeEthernet* scene = nullptr;
}  // namespace

namespace fakes {

FakeEthernet::FakeEthernet(const SocketAddress& here) {
  scene = this;
  link.link.index = kIndex;
  link.link.name = "card";
  link.link.type = ARPHRD_ETHER;
  link.link.flags = IFF_UP | IFF_RUNNING | 0x10000;  // IFF_LOWER_UP
  link.link.mtu = 1500;
  link.link.mac = {2, 0, 0, 0, 0, 1};
  address.address.ifindex = kIndex;
  address.address.address = address.address.peer = net::IpAddress::of(here);
  address.address.prefix_length = 24;
  kernel.tables = {link, address};
  kernel.path.type = net::PathType::unicast;
  kernel.path.oif = kIndex;
  kernel.path.source = net::IpAddress::of(here);
  kernel.path.mtu = 1500;
  kernel.path.hop_limit = 64;
  kernel.neighbour = {net::NeighbourState::reachable, {2, 0, 0, 0, 0, 2}};

  auto made = std::make_unique<FakeCard>();
  card = made.get();
  interface = *ethernet::Interface::by_card({.device = std::move(made), .does_checksums = true}, link.link, {});
  auto network = net::NetworkState::open(std::make_unique<net::FakeKernel>(kernel));
  ethernet = std::make_shared<ethernet::Ethernet>(*std::move(network), vma::rings_of_process());
}

FakeEthernet::~FakeEthernet() { scene = nullptr; }

void FakeEthernet::happens(const net::KernelEvent& event) {
  kernel.events.push_back({.events = {event}});
  ethernet->network().process_events();
}

}  // namespace fakes

namespace ethernet {

Result<std::shared_ptr<Ethernet>> Ethernet::of_socket(int /*fd*/, EthernetUser& /*user*/) {
  if (scene == nullptr) return Error{ENODEV, "no scene"};
  return scene->ethernet;
}

Ethernet::Ethernet(std::shared_ptr<net::NetworkState> network, EthernetUser& user)
    : network_(std::move(network)), user_(user), numbers_({1, 2, 3, 4}) {
  listener_ = network_->add_listener([this](const net::NetworkChange& change) { on_change(change); });
}

Ethernet::~Ethernet() { network_->remove_listener(listener_); }

void Ethernet::on_change(const net::NetworkChange& change) {
  using What = net::NetworkChange::What;
  if (change.what == What::link || change.what == What::address) ++address_generation_;
}

Result<std::shared_ptr<Ring>> Ethernet::ring_on(int ifindex, const runtime::RingKey& key) {
  if (ifindex != fakes::FakeEthernet::kIndex || !network_->link(ifindex)) return Error{ENODEV, "ring_on"};
  std::weak_ptr<Ring>& known = slots_[ifindex].rings[key];
  if (auto ring = known.lock()) return ring;
  auto ring =
      Ring::create(scene->interface,
                   {.receive_entries = 32, .send_entries = fakes::FakeEthernet::kSendPlaces, .sends_per_completion = 1},
                   std::make_unique<PrivateRingCounters>());
  if (ring) known = *ring;
  return ring;
}

bool Ethernet::is_left_to_netfilter(int /*family*/, int /*ifindex*/) { return false; }

std::vector<verbs::BufferPoolStatistics> Ethernet::refresh_statistics() { return {}; }

}  // namespace ethernet
}  // namespace ringsock
