// A UDP socket's life, names and options, and the flows that come to it.
#include "libvmacompat/udp_socket.h"

#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <shared_mutex>

#include "core/base/log.h"
#include "core/ethernet/bursts.h"
#include "core/runtime/fd_table.h"
#include "core/runtime/fork_registry.h"
#include "libvmacompat/port_claims.h"
#include "libvmacompat/process.h"
#include "libvmacompat/ring_alloc_logic.h"
#include "libvmacompat/rings_of_process.h"
#include "libvmacompat/socket_options.h"
#include "libvmacompat/statistics.h"

namespace ringsock::vma {

namespace {

/// Makes the choice of rings for a socket; each socket has a number of its own.
ethernet::RingChoice choice_of(std::int32_t logic, std::int32_t ratio) {
  static std::atomic<std::uint64_t> sockets{0};
  return {static_cast<ethernet::RingLogic>(logic), ratio, sockets.fetch_add(1, std::memory_order_relaxed)};
}

ino_t inode_of(int fd) {
  struct stat about {};
  return ::fstat(fd, &about) == 0 ? about.st_ino : 0;
}

}  // namespace

UdpSocket::UdpSocket(int domain, int fd)
    : Endpoint(Carries::datagrams),
      domain_(domain),
      inode_(inode_of(fd)),
      polls_per_kernel_look_(process().config.rx_udp_poll_os_ratio),
      fd_(fd),
      local_(SocketAddress::wildcard(domain, 0)),
      receive_choice_(choice_of(process().config.ring_allocation_logic_rx, process().config.ring_migration_ratio_rx)),
      receive_limit_(receive_buffer_of(fd)),
      send_choice_(choice_of(process().config.ring_allocation_logic_tx, process().config.ring_migration_ratio_tx)) {
  if (!process().config.tx_mc_loopback) stop_multicast_loop(fd, domain);
  runtime::fork_registry().enter(*this);
  SocketFamily::install_fork_handlers();  // its handlers run after the registry's in a child, and before them in a
                                          // parent
  describe();
}

UdpSocket::~UdpSocket() {
  const std::shared_lock teardown(runtime::fork_registry().teardown_gate());
  runtime::fork_registry().leave(*this);
}

/// Visits all sockets of the process. Holds no lock of the table or of a socket meanwhile.
void UdpSocket::for_each_socket(const std::function<void(UdpSocket&)>& visit) {
  std::vector<runtime::Ref> sockets;
  runtime::fd_table().for_each(
      [&](int, runtime::Endpoint& endpoint) { sockets.push_back(runtime::Ref::share(endpoint)); });
  for (const runtime::Ref& one : sockets) {
    if (auto* const socket = dynamic_cast<UdpSocket*>(&*one)) visit(*socket);
  }
}

// -- names -----------------------------------------------------------------------------------------

Status UdpSocket::bind(const sockaddr* address, socklen_t length) {
  const RingNews news(*this);
  const std::scoped_lock guard(setup_lock_, send_lock_);
  std::vector<std::shared_ptr<ethernet::Ring>> opened;  // keeps rings that end with their last user
  if (const auto name = SocketAddress::from(address, length); name && name->family() == domain_)
    opened = open_rings(*name);
  if (::bind(fd(), address, length) != 0) return Error::last("bind");
  is_bound_ = true;
  learn_names();
  attach_all();
  describe();
  return ok();
}

Status UdpSocket::connect(const sockaddr* address, socklen_t length) {
  const RingNews news(*this);
  if (::connect(fd(), address, length) != 0) return Error::last("connect");
  const std::scoped_lock guard(setup_lock_, send_lock_);
  detach_all();  // first, so that pollers of rings never see a half-written name
  learn_names();
  const SocketAddress local = local_.unmapped();
  const bool is_kernels =
      !peer_.is_unspecified() &&
      process().rules().decide(config::VmaRole::udp_connect, peer_.unmapped(), &local) == config::VmaTransport::os;
  if (is_kernels) give_up_rings();
  attach_all();
  describe();
  return ok();
}

Status UdpSocket::shutdown(int how) {
  ethernet::bursts().send_all();
  // Shutting down a socket that is not connected fails, but nevertheless wakes its readers.
  if (how == SHUT_RD || how == SHUT_RDWR) read_shut_.store(true, std::memory_order_relaxed);
  if (::shutdown(fd(), how) != 0) {
    const Error error = Error::last("shutdown");
    notify_watchers();
    return error;
  }
  {
    // From now on the kernel decides what reading and writing mean.
    const std::lock_guard guard(setup_lock_);
    give_up_rings();
    describe();
  }
  notify_watchers();
  return ok();
}

Result<SocketAddress> UdpSocket::local_name() { return name_by(::getsockname, fd(), "getsockname"); }
Result<SocketAddress> UdpSocket::peer_name() { return name_by(::getpeername, fd(), "getpeername"); }

void UdpSocket::learn_names() {
  if (const auto local = local_name()) local_ = *local;
  const auto peer = peer_name();
  peer_ = peer ? *peer : SocketAddress();
  if (peer) peer_name_ = wire::EndName::of(peer_);
  is_connected_.store(static_cast<bool>(peer), std::memory_order_release);
  options_generation_.fetch_add(1, std::memory_order_relaxed);
}

// -- options ---------------------------------------------------------------------------------------

Status UdpSocket::set_option(int level, int name, const void* value, socklen_t length) {
  if (level == SOL_SOCKET && name == kRingAllocLogicOption) return set_ring_logic(value, length);
  const RingNews news(*this);
  const OptionEffect effect = effect_of(level, name);
  if (effect == OptionEffect::socket_filter) {
    const std::lock_guard guard(setup_lock_);
    give_up_rings();  // a socket has one filter, which until then may be ours
  }
  if (::setsockopt(fd(), level, name, value, length) != 0) return Error::last("setsockopt");
  const std::lock_guard guard(setup_lock_);
  if (note_receive_option(level, name, value, length)) return ok();
  if (const auto group = group_of_option(level, name, value, length)) {
    learn_membership(*group);
    describe();
    return ok();
  }
  if (const auto interface = multicast_interface_of_option(level, name, value, length)) {
    learn_multicast_interface(level, *interface);
    return ok();
  }
  switch (effect) {
    case OptionEffect::none:
    case OptionEffect::socket_filter: break;
    case OptionEffect::sending: options_generation_.fetch_add(1, std::memory_order_relaxed); break;
    case OptionEffect::receive_buffer: {
      const std::size_t limit = receive_buffer_of(fd());
      const std::lock_guard receiving(receive_lock_);
      receive_limit_ = limit;
      break;
    }
    case OptionEffect::time_outs: learn_time_outs(*this, fd()); break;
    case OptionEffect::shared_port: shares_port_.store(true, std::memory_order_relaxed); break;
    case OptionEffect::shared_address:
      if (!attachments_.empty() && !is_connected_.load(std::memory_order_relaxed) && !is_port_ours())
        detach_own_addresses();
      break;
    case OptionEffect::segments:
      segment_bytes_.store(static_cast<std::uint16_t>(option_of(fd(), IPPROTO_UDP, UDP_SEGMENT, 0)),
                           std::memory_order_relaxed);
      break;
    case OptionEffect::bound_interface: learn_bound_interface(); break;
    case OptionEffect::broadcast:
      hears_broadcast_ = option_of(fd(), SOL_SOCKET, SO_BROADCAST, 0) != 0;
      attach_all();
      break;
    case OptionEffect::kernel_sends:
      log_info("descriptor %d: socket option %d of level %d: the kernel sends", fd(), name, level);
      kernel_sends_.store(true, std::memory_order_relaxed);
      break;
    case OptionEffect::kernel_only:
      log_info("descriptor %d: socket option %d of level %d leaves it to the kernel", fd(), name, level);
      give_up_rings();
      break;
  }
  describe();
  return ok();
}

bool UdpSocket::note_receive_option(int level, int name, const void* value, socklen_t length) {
  {
    const std::lock_guard receiving(receive_lock_);
    if (!receive_options_.note(level, name, value, length)) return false;
    tells_drops_.store(receive_options_.overflow, std::memory_order_relaxed);
  }
  options_generation_.fetch_add(1, std::memory_order_relaxed);  // SO_TIMESTAMPING may concern sending, too
  if (!receive_options_.wants_time()) return true;
  for (const Attachment& one : attachments_) one.ring->want_times();
  return true;
}

Status UdpSocket::get_option(int level, int name, void* value, socklen_t* length) {
  if (::getsockopt(fd(), level, name, value, length) != 0) return Error::last("getsockopt");
  return ok();
}

// -- which flows are ours --------------------------------------------------------------------------

ethernet::Ethernet* UdpSocket::ethernet() {
  if (!ethernet_ && !ethernet_failed_) {
    auto ethernet = ethernet::Ethernet::of_socket(fd(), rings_of_process());
    if (ethernet) {
      ethernet_ = *std::move(ethernet);
    } else {
      ethernet_failed_ = true;
      log_info("UDP sockets stay with the kernel: %s: %s", ethernet.error().where,
               std::strerror(ethernet.error().code));
    }
  }
  return ethernet_.get();
}

void UdpSocket::attach_all() {
  if (kernel_only_.load(std::memory_order_relaxed) || local_.port() == 0) return;
  if (net::IpAddress::of(local_).is_loopback() || ethernet() == nullptr) return;
  const auto generation = ethernet_->address_generation();  // read first: later changes are looked at again
  // When several processes have a port, only the kernel knows which of them gets a datagram. But what comes from a
  // connected socket's peer is for that socket.
  if (is_connected_.load(std::memory_order_relaxed) || is_port_ours()) attach_own_addresses();
  attach_groups();
  attached_generation_.store(generation, std::memory_order_relaxed);
}

/// Returns whether no other process has a socket that receives from the port.
bool UdpSocket::is_port_ours() {
  if (shares_port() || is_port_elsewhere_.load(std::memory_order_relaxed)) return false;
  if (option_of(fd(), SOL_SOCKET, SO_REUSEADDR, 0) == 0) return true;
  const PortPlace place{local_, domain_ == AF_INET6 && is_v6_only(fd()), bound_interface_};
  if (port_claims().enter(place, *this)) {
    claimed_port_ = local_.port();
    return true;
  }
  is_port_elsewhere_.store(true, std::memory_order_relaxed);
  return false;
}

void UdpSocket::leave_port_to_kernel() {
  const std::lock_guard guard(setup_lock_);
  is_port_elsewhere_.store(true, std::memory_order_relaxed);
  if (is_connected_.load(std::memory_order_relaxed)) return;
  log_info("descriptor %d: another process has port %u, too: received by the kernel", fd(), local_.port());
  detach_own_addresses();
}

void UdpSocket::detach_own_addresses() {
  detach_where([](const Attachment& one) { return !one.is_group(); });
  kernel_hint_.store(true, std::memory_order_relaxed);
}

void UdpSocket::attach_own_addresses() {
  for_each_place(local_, is_bound_, [this](const SocketAddress& address, int ifindex) { attach_at(address, ifindex); });
}

/// Opens the rings before bind(2), because it takes milliseconds. Once the kernel's socket is bound, datagrams come;
/// some programs set the options for control data only then.
std::vector<std::shared_ptr<ethernet::Ring>> UdpSocket::open_rings(const SocketAddress& local) {
  std::vector<std::shared_ptr<ethernet::Ring>> opened;
  const bool is_kernels = kernel_only_.load(std::memory_order_relaxed) || shares_port() ||
                          net::IpAddress::of(local.unmapped()).is_loopback();
  if (is_kernels || ethernet() == nullptr) return opened;
  for_each_place(local, true, [&](const SocketAddress& address, int ifindex) {
    if (auto ring = ethernet_->ring_on(ifindex, receive_key(address))) opened.push_back(*std::move(ring));
  });
  return opened;
}

/// Calls `visit(address, interface index)` for each address of this host that `name` stands for.
template <class Visit>
void UdpSocket::for_each_place(const SocketAddress& name, bool is_bound, Visit visit) {
  const SocketAddress local = name.unmapped();
  net::NetworkState& network = ethernet_->network();
  if (!local.is_wildcard()) {
    const int scope = domain_ == AF_INET6 && name.family() == AF_INET6 ? static_cast<int>(name.in6().sin6_scope_id) : 0;
    const auto place = network.find_address(net::IpAddress::of(local), scope);
    if (!place) return;
    const int ifindex = bound_interface_ != 0 ? bound_interface_ : place->ifindex;
    if (!is_left_to_netfilter(local.family(), ifindex)) visit(local, ifindex);
  } else if (is_bound) {
    const bool v4_too = domain_ == AF_INET || !is_v6_only(fd());
    for (const net::InterfaceAddress& one : network.addresses()) {
      const bool fits = one.address.is_v4() ? v4_too : domain_ == AF_INET6;
      if (!fits || one.address.is_loopback() || one.is_tentative()) continue;
      if (bound_interface_ != 0 && bound_interface_ != one.ifindex) continue;
      if (is_left_to_netfilter(one.address.family(), one.ifindex)) continue;
      visit(one.address.with_port(local.port()), one.ifindex);
    }
  }
}

void UdpSocket::attach_at(const SocketAddress& local, int ifindex) {
  auto ring = ethernet_->ring_on(ifindex, receive_key(local));
  if (!ring) return;
  verbs::FlowTuple tuple{.protocol = IPPROTO_UDP, .destination = local};
  const SocketAddress peer = peer_.unmapped();
  if (peer.family() == local.family() && peer.port() != 0) tuple.source = peer;
  attach(*ring, tuple);
}

/// Attaches unless a rule of libvma.conf leaves the flow to the kernel.
bool UdpSocket::attach(const std::shared_ptr<ethernet::Ring>& ring, const verbs::FlowTuple& tuple) {
  if (process().rules().decide(config::VmaRole::udp_receiver, tuple.destination) == config::VmaTransport::os)
    return false;
  Attachment attachment{ring, tuple};
  if (std::find(attachments_.begin(), attachments_.end(), attachment) != attachments_.end()) return true;
  // The ring is polled before anything can come by it.
  if (!poll_ring(ring)) return false;
  if (Status attached = ring->attach(tuple, *this); !attached) {
    log_info("%s: received by the kernel: %s: %s", tuple.destination.to_string().c_str(), attached.error().where,
             std::strerror(attached.error().code));
    return false;
  }
  if (receive_options_.wants_time()) ring->want_times();
  attachments_.push_back(std::move(attachment));
  kernel_hint_.store(true, std::memory_order_relaxed);  // earlier datagrams are there
  return true;
}

/// Datagrams that are queued now are received before those that come by another way from now on.
void UdpSocket::receive_arrivals_first() {
  const std::lock_guard receiving(receive_lock_);
  older_arrivals_.store(arrivals_.count(), std::memory_order_relaxed);
}

/// Datagrams that are queued already can still be received.
void UdpSocket::detach_where(const std::function<bool(const Attachment&)>& is_meant) {
  const std::size_t left = std::erase_if(attachments_, [&](const Attachment& one) {
    const bool goes = is_meant(one);
    if (goes) one.ring->leave(one.tuple, *this);
    return goes;
  });
  if (left != 0) receive_arrivals_first();
}

void UdpSocket::detach_all() {
  detach_where([](const Attachment&) { return true; });
}

void UdpSocket::give_up_rings() {
  kernel_only_.store(true, std::memory_order_relaxed);
  detach_all();
  static_cast<void>(refuse_copies_of({}));
  options_generation_.fetch_add(1, std::memory_order_relaxed);
}

void UdpSocket::learn_bound_interface() {
  bound_interface_ = bound_interface_of(fd());
  detach_all();
  attach_all();
  options_generation_.fetch_add(1, std::memory_order_relaxed);
}

/// Called after addresses have changed. For programs that make no calls on the socket the service thread does the same.
void UdpSocket::follow_addresses() {
  const RingNews news(*this);
  const std::unique_lock guard(setup_lock_, std::try_to_lock);
  if (guard) follow_addresses_locked();
}

void UdpSocket::follow_addresses_locked() {
  if (!ethernet_ || ring_count_.load(std::memory_order_relaxed) == 0) return;
  const auto generation = ethernet_->address_generation();
  if (attached_generation_.load(std::memory_order_relaxed) == generation) return;
  detach_where([&](const Attachment& one) {
    return !one.is_group() && !ethernet_->network().find_address(net::IpAddress::of(one.tuple.destination)).has_value();
  });
  attach_all();
  describe();
  attached_generation_.store(generation, std::memory_order_relaxed);
}

void UdpSocket::all_follow_addresses() {
  for_each_socket([](UdpSocket& socket) {
    const RingNews news(socket);
    const std::lock_guard guard(socket.setup_lock_);
    socket.follow_addresses_locked();
  });
}

// -- the end ---------------------------------------------------------------------------------------

void UdpSocket::closed() noexcept {
  ethernet::bursts().send_all();
  std::uint16_t claimed = 0;
  {
    const std::lock_guard guard(setup_lock_);
    describe();
    write_statistics_file(statistics_.slot());
    kernel_only_.store(true, std::memory_order_relaxed);
    for (const Attachment& one : attachments_) one.ring->detach(one.tuple, *this);
    attachments_.clear();
    if (family_) family_->leave();
    claimed = std::exchange(claimed_port_, std::uint16_t{0});
  }
  if (claimed != 0) port_claims().leave(claimed, *this);
}

void UdpSocket::descriptor_closed(int fd) noexcept {
  if (fd != this->fd()) return;
  fd_.store(runtime::fd_table().number_of(*this).value_or(-1), std::memory_order_relaxed);
}

}  // namespace ringsock::vma
