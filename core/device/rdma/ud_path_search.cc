#include "core/device/rdma/ud_path_search.h"

#include <endian.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <vector>

namespace ringsock::rdma {

namespace {

constexpr int kTimeoutMs = 2000;  // as in rdma-core
constexpr std::size_t kMostGids = 1024;

std::uint8_t own_path_bits(const Calls& calls, ibv_context& context, std::uint8_t port, std::uint16_t lid) {
  ibv_port_attr attr{};
  if (calls.query_port(&context, port, &attr) != 0) return 0;
  return static_cast<std::uint8_t>(lid & ((1U << (attr.lmc & 7U)) - 1));
}

std::uint8_t gid_index_of(const Calls& calls, ibv_context& context, std::uint8_t port, const ibv_gid& gid) {
  std::vector<ibv_gid_entry> table(kMostGids);
  const ssize_t count = calls.query_gid_table(&context, table.data(), table.size());
  const std::span<const ibv_gid_entry> entries(table.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const ibv_gid_entry& entry) {
    return entry.port_num == port && std::memcmp(entry.gid.raw, gid.raw, sizeof gid.raw) == 0;
  });
  return found == entries.end() ? std::uint8_t{0} : static_cast<std::uint8_t>(found->gid_index);
}

}  // namespace

Result<std::unique_ptr<CmPathSearch>> CmPathSearch::start(const Calls& calls, Token token, const SocketAddress& local,
                                                          const SocketAddress& destination) {
  if (token.use_count() >= kMost + 2) return Error{EAGAIN, "ud: searches"};  // the owner's, and this copy
  auto channel = EventChannel::create(calls);
  if (!channel) return channel.error();
  std::unique_ptr<CmPathSearch> out(new CmPathSearch(calls, std::move(token), *std::move(channel)));
  if (calls.create_id(out->channel_.get(), &out->id_, nullptr, RDMA_PS_UDP) != 0) return Error::last("rdma_create_id");
  SocketAddress from = local, to = destination;
  from.set_port(0);
  if (calls.resolve_addr(out->id_, const_cast<sockaddr*>(from.get()), const_cast<sockaddr*>(to.get()), kTimeoutMs) != 0)
    return Error::last("rdma_resolve_addr");
  return out;
}

CmPathSearch::CmPathSearch(const Calls& calls, Token token, EventChannel channel)
    : calls_(calls), token_(std::move(token)), channel_(std::move(channel)), owner_(::getpid()) {}

/// In a forked child the kernel's id belongs to the parent.
CmPathSearch::~CmPathSearch() {
  if (id_ != nullptr && ::getpid() == owner_) calls_.destroy_id(id_);
}

Status CmPathSearch::take_event() {
  rdma_cm_event* event = nullptr;
  if (calls_.get_cm_event(channel_.get(), &event) != 0) return Error{EAGAIN, "ud: the search goes on"};
  const rdma_cm_event_type type = event->event;
  calls_.ack_cm_event(event);
  switch (type) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
      if (calls_.resolve_route(id_, kTimeoutMs) != 0) failure_ = EHOSTUNREACH;
      break;
    case RDMA_CM_EVENT_ROUTE_RESOLVED: is_resolved_ = true; break;
    case RDMA_CM_EVENT_ROUTE_ERROR: failure_ = ETIMEDOUT; break;
    default: failure_ = EHOSTUNREACH; break;
  }
  return ok();
}

Result<ibv_ah_attr> CmPathSearch::look() {
  while (!is_resolved_ && failure_ == 0) {
    if (Status taken = take_event(); !taken) return taken.error();
  }
  const rdma_route& route = id_->route;
  if (failure_ == 0 && (route.path_rec == nullptr || route.num_paths <= 0 || id_->verbs == nullptr))
    failure_ = EHOSTUNREACH;
  if (failure_ != 0) return Error{failure_, "ud: no path"};
  return infiniband_path(calls_, *id_->verbs, id_->port_num, route.path_rec[0]);
}

ibv_ah_attr infiniband_path(const Calls& calls, ibv_context& context, std::uint8_t port,
                            const ibv_sa_path_rec& record) {
  ibv_ah_attr out{};
  out.dlid = be16toh(record.dlid);
  out.sl = record.sl;
  out.src_path_bits = own_path_bits(calls, context, port, be16toh(record.slid));
  out.static_rate = record.rate;
  out.port_num = port;
  if (record.hop_limit > 1) {
    out.is_global = 1;
    out.grh.dgid = record.dgid;
    out.grh.sgid_index = gid_index_of(calls, context, port, record.sgid);
    out.grh.flow_label = be32toh(record.flow_label);
    out.grh.hop_limit = record.hop_limit;
    out.grh.traffic_class = record.traffic_class;
  }
  return out;
}

}  // namespace ringsock::rdma
