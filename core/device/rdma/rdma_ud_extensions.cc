#include "core/device/rdma/rdma_ud_extensions.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <vector>

#include "core/device/rdma/event_channel.h"
#include "core/device/rdma/rdma_devices.h"

namespace ringsock::rdma {

namespace {

constexpr Nanos kReuse = std::chrono::seconds(1);
constexpr std::size_t kMostKnown = 1024;
constexpr std::size_t kMostGids = 1024;
constexpr std::uint8_t kHops = 64;

/// An id that is destroyed, for one question.
class CmId {
 public:
  explicit CmId(const Calls& calls) : calls_(calls) {}
  CmId(const CmId&) = delete;
  CmId& operator=(const CmId&) = delete;
  ~CmId() {
    if (id_ != nullptr) calls_.destroy_id(id_);
  }
  Status make(const EventChannel& channel) {
    return calls_.create_id(channel.get(), &id_, nullptr, RDMA_PS_UDP) == 0 ? ok()
                                                                            : Status(Error::last("rdma_create_id"));
  }
  [[nodiscard]] rdma_cm_id& operator*() const { return *id_; }

 private:
  const Calls& calls_;
  rdma_cm_id* id_ = nullptr;
};

std::string key_of(const SocketAddress& host) { return {reinterpret_cast<const char*>(host.get()), host.length()}; }

bool is_link_local(const SocketAddress& address) {
  return address.family() == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&address.in6().sin6_addr);
}

}  // namespace

RdmaUdExtensions::RdmaUdExtensions(std::shared_ptr<RdmaDevices> devices) : devices_(std::move(devices)) {}

Result<verbs::UdPort> RdmaUdExtensions::port_of(const SocketAddress& local) {
  SocketAddress host = local;
  host.set_port(0);
  const std::string key = key_of(host);
  const Nanos now = monotonic_now();
  {
    const std::lock_guard guard(lock_);
    if (const auto known = known_.find(key); known != known_.end() && now < known->second.until)
      return known->second.port;
  }
  const auto port = ask(host);
  const std::lock_guard guard(lock_);
  if (known_.size() >= kMostKnown) known_.clear();
  known_.insert_or_assign(key, Known{port, now + kReuse});
  return port;
}

/// Binding an id to an address makes RDMA CM look for the device and the port, whatever the link layer.
Result<verbs::UdPort> RdmaUdExtensions::ask(const SocketAddress& host) {
  const Calls& calls = devices_->calls();
  auto channel = EventChannel::create(calls);
  if (!channel) return channel.error();
  CmId id(calls);
  if (Status made = id.make(*channel); !made) return made.error();
  if (calls.bind_addr(&*id, const_cast<sockaddr*>(host.get())) != 0 || (*id).verbs == nullptr)
    return Error{ENODEV, "rdma: no device has the address"};
  return port_of_id(*id);
}

Result<verbs::UdPort> RdmaUdExtensions::port_of_id(rdma_cm_id& id) {
  if (id.verbs->device->transport_type == IBV_TRANSPORT_IWARP) return Error{EOPNOTSUPP, "iWARP has no datagrams"};
  auto device = devices_->device_of(*id.verbs);
  if (!device) return device.error();
  const auto attr = (*device)->query_port(id.port_num);
  if (!attr) return attr.error();
  verbs::UdPort out;
  out.device = *device;
  out.number = id.port_num;
  out.mtu = std::clamp(attr->active_mtu, IBV_MTU_256, IBV_MTU_4096);
  out.is_ethernet = attr->link_layer == IBV_LINK_LAYER_ETHERNET;
  // An interface of InfiniBand has its own partition; without an answer it is the first one.
  ibv_qp_attr init{};
  init.qp_state = IBV_QPS_INIT;
  int mask = 0;
  if (!out.is_ethernet && devices_->calls().init_qp_attr(&id, &init, &mask) == 0 && (mask & IBV_QP_PKEY_INDEX) != 0)
    out.pkey_index = init.pkey_index;
  return out;
}

Result<ibv_ah_attr> RdmaUdExtensions::path_to(const verbs::UdPort& port, const SocketAddress& local,
                                              const SocketAddress& destination,
                                              std::unique_ptr<verbs::UdPathSearch>& search) {
  if (port.is_ethernet)
    return ethernet_path(devices_->calls(), port.device->context(), port.number, local, destination);
  if (!search) {
    auto started = CmPathSearch::start(devices_->calls(), searches_, local, destination);
    if (!started) return started.error();
    search = *std::move(started);
  }
  return static_cast<CmPathSearch&>(*search).look();
}

ibv_gid gid_of(const SocketAddress& address) {
  ibv_gid out{};
  const SocketAddress six = address.family() == AF_INET ? address.mapped() : address;
  std::memcpy(out.raw, &six.in6().sin6_addr, sizeof out.raw);
  return out;
}

Result<ibv_ah_attr> ethernet_path(const Calls& calls, ibv_context& context, std::uint8_t port,
                                  const SocketAddress& local, const SocketAddress& destination) {
  std::vector<ibv_gid_entry> table(kMostGids);
  const ssize_t count = calls.query_gid_table(&context, table.data(), table.size());
  if (count < 0) return Error{static_cast<int>(-count), "ibv_query_gid_table"};
  const ibv_gid wanted = gid_of(local);
  const unsigned interface = is_link_local(destination) ? destination.in6().sin6_scope_id : 0;
  const ibv_gid_entry* best = nullptr;
  for (const ibv_gid_entry& entry : std::span(table).first(static_cast<std::size_t>(count))) {
    if (entry.port_num != port || std::memcmp(entry.gid.raw, wanted.raw, sizeof wanted.raw) != 0) continue;
    if (interface != 0 && entry.ndev_ifindex != interface) continue;
    if (entry.gid_type != IBV_GID_TYPE_ROCE_V2 && entry.gid_type != IBV_GID_TYPE_ROCE_V1) continue;
    if (best == nullptr || (entry.gid_type == IBV_GID_TYPE_ROCE_V2 && best->gid_type != IBV_GID_TYPE_ROCE_V2))
      best = &entry;
  }
  if (best == nullptr) return Error{EADDRNOTAVAIL, "rdma: the port has no such GID"};
  ibv_ah_attr out{};
  out.port_num = port;
  out.is_global = 1;
  out.grh.dgid = gid_of(destination);
  out.grh.sgid_index = static_cast<std::uint8_t>(best->gid_index);
  out.grh.hop_limit = kHops;
  return out;
}

}  // namespace ringsock::rdma
