// Asks libibverbs and librdmacm.
#include <ifaddrs.h>
#include <infiniband/verbs.h>
#include <net/if.h>
#include <rdma/rdma_cma.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "core/base/socket_address.h"
#include "tools/rsdevices_system.h"

namespace ringsock::tools {

namespace {

template <auto Destroy>
struct Closer {
  template <class T>
  void operator()(T* object) const {
    Destroy(object);
  }
};
template <class T, auto Destroy>
using Owned = std::unique_ptr<T, Closer<Destroy>>;

Transport transport_of(const ibv_device& device) {
  switch (device.transport_type) {
    case IBV_TRANSPORT_IB: return Transport::infiniband;
    case IBV_TRANSPORT_IWARP: return Transport::iwarp;
    default: return Transport::other;
  }
}

/// Returns 0 or an errno value. The memory is ordinary, so the kernel would refuse the same to the library.
int try_to_register(ibv_context& context, std::size_t bytes) {
  const Owned<ibv_pd, &ibv_dealloc_pd> pd(::ibv_alloc_pd(&context));
  if (!pd) return errno;
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return errno;
  int error = 0;
  {
    const Owned<ibv_mr, &ibv_dereg_mr> mr(
        ::ibv_reg_mr(pd.get(), memory, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
    if (!mr) error = errno;
  }
  ::munmap(memory, bytes);
  return error;
}

/// Returns whether libvma can use the device, which core/device/rdma/packet_port.h tries in the same way.
bool try_packets(ibv_context& context) {
  if (verbs_get_ctx_op(&context, ibv_create_flow) == nullptr) return false;
  const Owned<ibv_pd, &ibv_dealloc_pd> pd(::ibv_alloc_pd(&context));
  const Owned<ibv_cq, &ibv_destroy_cq> cq(::ibv_create_cq(&context, 1, nullptr, nullptr, 0));
  if (!pd || !cq) return false;
  ibv_qp_init_attr attr{};
  attr.send_cq = attr.recv_cq = cq.get();
  attr.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
  attr.qp_type = IBV_QPT_RAW_PACKET;
  const Owned<ibv_qp, &ibv_destroy_qp> qp(::ibv_create_qp(pd.get(), &attr));
  return qp != nullptr;
}

VerbsDevice ask(ibv_device& device, std::size_t trial_bytes) {
  VerbsDevice out;
  out.name = device.name;
  out.transport = transport_of(device);
  const Owned<ibv_context, &ibv_close_device> context(::ibv_open_device(&device));
  if (!context) {
    out.open_error = errno != 0 ? errno : ENODEV;
    return out;
  }
  ibv_device_attr attr{};
  out.open_error = ::ibv_query_device(context.get(), &attr);
  if (out.open_error != 0) return out;
  out.register_error = try_to_register(*context, trial_bytes);
  out.carries_packets = try_packets(*context);
  return out;
}

/// Binds an id to the address, which makes RDMA CM look for its device, whatever the link layer. The library does the
/// same.
void bind(rdma_event_channel& channel, const SocketAddress& address, HostAddress& out) {
  rdma_cm_id* made = nullptr;
  if (::rdma_create_id(&channel, &made, nullptr, RDMA_PS_TCP) != 0) return;
  const Owned<rdma_cm_id, &rdma_destroy_id> id(made);
  if (::rdma_bind_addr(made, const_cast<sockaddr*>(address.get())) != 0 || made->verbs == nullptr) return;
  out.device = made->verbs->device->name;
  out.port = made->port_num;
}

socklen_t length_of(const sockaddr& address) {
  return address.sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
}

}  // namespace

std::vector<VerbsDevice> ask_libibverbs(std::size_t trial_bytes) {
  std::vector<VerbsDevice> out;
  int count = 0;
  const Owned<ibv_device*, &ibv_free_device_list> list(::ibv_get_device_list(&count));
  if (!list) return out;
  for (ibv_device* device : std::span(list.get(), static_cast<std::size_t>(count))) {
    out.push_back(ask(*device, trial_bytes));
  }
  return out;
}

std::vector<HostAddress> ask_addresses(bool ask_rdma_cm) {
  std::vector<HostAddress> out;
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return out;
  const Owned<ifaddrs, &freeifaddrs> list(first);
  const Owned<rdma_event_channel, &rdma_destroy_event_channel> channel(ask_rdma_cm ? ::rdma_create_event_channel()
                                                                                   : nullptr);
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_LOOPBACK) != 0) continue;
    const auto address = SocketAddress::from(entry->ifa_addr, length_of(*entry->ifa_addr));
    if (!address) continue;
    HostAddress host{entry->ifa_name, address->host_to_string(), "", 0};
    if (channel) bind(*channel, *address, host);
    out.push_back(std::move(host));
  }
  return out;
}

}  // namespace ringsock::tools
