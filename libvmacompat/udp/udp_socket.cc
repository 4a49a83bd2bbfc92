// A UDP socket's life, names and options.
#include "libvmacompat/udp/udp_socket.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

#include "core/ethernet/bursts.h"
#include "core/runtime/fd_table.h"
#include "core/runtime/fork_registry.h"
#include "libvmacompat/process/kernel_options.h"
#include "libvmacompat/process/statistics_requests.h"
#include "libvmacompat/process/vma_process.h"
#include "libvmacompat/udp/port_claims.h"

namespace ringsock::vma {

namespace {

/// Makes the choice of rings for a socket; each socket has a number of its own.
runtime::RingChoice choice_of(std::int32_t logic, std::int32_t ratio) {
  return {static_cast<runtime::RingLogic>(logic), ratio, process().next_choice()};
}

/// Called where an option has the kernel carry the socket. Errors: the socket stays where it is, and the call fails.
Status leave_rings(int fd, int level, int name) {
  return process().leaves_rings("descriptor " + std::to_string(fd) + ": socket option " + std::to_string(name) +
                                " of level " + std::to_string(level));
}

}  // namespace

UdpSocket::UdpSocket(int domain, int fd)
    : Endpoint(Carries::datagrams),
      kernel_(domain, fd, process().config.rx_udp_poll_os_ratio, statistics_),
      sender_(kernel_, rings_, flows_, inheritance_, *this, statistics_,
              choice_of(process().config.ring_allocation_logic_tx, process().config.ring_migration_ratio_tx)),
      flows_(*this, kernel_, rings_, queue_, sender_.conditions(), statistics_),
      rings_(kernel_, *this, sender_.conditions(), Nanos(process().config.rx_cq_drain_rate_nsec)),
      queue_(kernel_, *this, statistics_,
             choice_of(process().config.ring_allocation_logic_rx, process().config.ring_migration_ratio_rx),
             receive_buffer_of(fd)),
      callback_(*this, kernel_, queue_),
      inheritance_(*this, kernel_, rings_, queue_, flows_, sender_),
      library_options_(kernel_, flows_, queue_, sender_),
      api_(*this, flows_, sender_, rings_, callback_) {
  if (!process().config.tx_mc_loopback) stop_multicast_loop(fd, domain);
  runtime::fork_registry().enter(*this);
  SocketFamily::install_fork_handlers();  // its handlers run after the registry's in a child, and before them in a
                                          // parent
  describe();
}

UdpSocket::~UdpSocket() {
  const std::shared_lock teardown(runtime::fork_registry().teardown_gate());
  runtime::fork_registry().leave(*this);
  sender_.end();
}

// -- names -----------------------------------------------------------------------------------------

Status UdpSocket::bind(const sockaddr* address, socklen_t length) {
  const PolledRings::News news(rings_);
  const std::scoped_lock guard(flows_.setup_lock(), sender_.lock());
  std::vector<std::shared_ptr<ethernet::Ring>> opened;  // keeps rings that end with their last user
  if (const auto name = SocketAddress::from(address, length); name && name->family() == kernel_.domain())
    opened = flows_.open_rings(*name);
  if (::bind(kernel_.fd(), address, length) != 0) return Error::last("bind");
  flows_.note_bound();
  flows_.learn_names();
  flows_.attach_all();
  describe();
  return ok();
}

Status UdpSocket::connect(const sockaddr* address, socklen_t length) {
  const PolledRings::News news(rings_);
  if (::connect(kernel_.fd(), address, length) != 0) return Error::last("connect");
  const std::scoped_lock guard(flows_.setup_lock(), sender_.lock());
  flows_.detach_all();  // first, so that pollers of rings never see a half-written name
  flows_.learn_names();
  const SocketAddress local = flows_.names().local.unmapped();
  const SocketAddress& peer = flows_.names().peer;
  const bool is_kernels =
      !peer.is_unspecified() &&
      process().rules().decide(config::VmaRole::udp_connect, peer.unmapped(), &local) == config::VmaTransport::os;
  if (is_kernels) flows_.give_up();
  flows_.attach_all();
  describe();
  return ok();
}

Status UdpSocket::shutdown(int how) {
  ethernet::bursts().send_all();
  // Shutting down a socket that is not connected fails, but nevertheless wakes its readers.
  if (how == SHUT_RD || how == SHUT_RDWR) read_shut_.store(true, std::memory_order_relaxed);
  if (::shutdown(kernel_.fd(), how) != 0) {
    const Error error = Error::last("shutdown");
    notify_watchers();
    return error;
  }
  {
    // From now on the kernel decides what reading and writing mean.
    const std::lock_guard guard(flows_.setup_lock());
    flows_.give_up();
    describe();
  }
  notify_watchers();
  return ok();
}

Result<SocketAddress> UdpSocket::local_name() {
  if (process().config.trigger_dummy_send_getsockname && queue_.is_connected()) [[unlikely]]
    sender_.load_caches();
  return name_by(::getsockname, kernel_.fd(), "getsockname");
}
Result<SocketAddress> UdpSocket::peer_name() { return name_by(::getpeername, kernel_.fd(), "getpeername"); }

void UdpSocket::follow_addresses() {
  const PolledRings::News news(rings_);
  const std::lock_guard guard(flows_.setup_lock());
  flows_.follow_addresses();
  describe();
}

void UdpSocket::follow_netfilter() {
  const PolledRings::News news(rings_);
  const std::lock_guard guard(flows_.setup_lock());
  flows_.follow_netfilter();
  describe();
}

// -- options ---------------------------------------------------------------------------------------

Status UdpSocket::set_option(int level, int name, const void* value, socklen_t length) {
  const PolledRings::News news(rings_);
  if (LibraryOptions::is_set_here(level, name, length)) {
    const std::lock_guard guard(flows_.setup_lock());
    const Status done = library_options_.set(level, name, value, length);
    describe();
    return done;
  }
  const OptionEffect effect = effect_of(level, name);
  if (effect == OptionEffect::socket_filter) {
    if (const Status left = leave_rings(kernel_.fd(), level, name); !left) return left;
    const std::lock_guard guard(flows_.setup_lock());
    flows_.give_up();  // a socket has one filter, which until then may be ours
  }
  if (::setsockopt(kernel_.fd(), level, name, value, length) != 0) return Error::last("setsockopt");
  const std::lock_guard guard(flows_.setup_lock());
  const Status done = note_option(level, name, value, length) ? ok() : apply(effect, level, name);
  describe();
  return done;
}

/// Notes an option about control data or groups. Returns false for any other option.
bool UdpSocket::note_option(int level, int name, const void* value, socklen_t length) {
  if (queue_.note_option(level, name, value, length)) {
    flows_.note_change();  // SO_TIMESTAMPING may concern sending, too
    if (queue_.wants_time()) flows_.want_times();
    return true;
  }
  if (const auto group = group_of_option(level, name, value, length)) {
    flows_.follow_groups(*group);
    return true;
  }
  const auto interface = multicast_interface_of_option(level, name, value, length);
  if (!interface) return false;
  const ethernet::Ethernet* const ethernet = flows_.ethernet();
  flows_.groups().set_interface(level == IPPROTO_IPV6 ? AF_INET6 : AF_INET, *interface,
                                ethernet != nullptr ? &ethernet->network() : nullptr);
  flows_.note_change();
  return true;
}

Status UdpSocket::apply(OptionEffect effect, int level, int name) {
  const int fd = kernel_.fd();
  switch (effect) {
    case OptionEffect::none:
    case OptionEffect::socket_filter: break;
    case OptionEffect::sending: flows_.note_change(); break;
    case OptionEffect::receive_buffer: queue_.set_limit(receive_buffer_of(fd)); break;
    case OptionEffect::time_outs: learn_time_outs(*this, fd); break;
    case OptionEffect::shared_port: queue_.share_port(); break;
    case OptionEffect::shared_address: flows_.follow_shared_address(); break;
    case OptionEffect::segments:
      sender_.set_segment_bytes(static_cast<std::uint16_t>(option_of(fd, IPPROTO_UDP, UDP_SEGMENT, 0)));
      break;
    case OptionEffect::bound_interface: flows_.follow_bound_interface(); break;
    case OptionEffect::broadcast:
      flows_.groups().learn_broadcast();
      flows_.attach_all();
      break;
    case OptionEffect::kernel_sends:
      if (const Status left = leave_rings(kernel_.fd(), level, name); !left) return left;
      sender_.leave_to_kernel();
      break;
    case OptionEffect::kernel_only:
      if (const Status left = leave_rings(kernel_.fd(), level, name); !left) return left;
      flows_.give_up();
      break;
  }
  return ok();
}

Status UdpSocket::get_option(int level, int name, void* value, socklen_t* length) {
  if (LibraryOptions::is_got_here(level, name)) return library_options_.get(name, value, length);
  if (::getsockopt(kernel_.fd(), level, name, value, length) != 0) return Error::last("getsockopt");
  return ok();
}

// -- sending ---------------------------------------------------------------------------------------

Result<int> UdpSocket::unsent_bytes() {
  ethernet::bursts().send_all();
  int bytes = 0;
  if (::ioctl(kernel_.fd(), SIOCOUTQ, &bytes) != 0) return Error::last("SIOCOUTQ");
  return bytes;
}

// -- the end ---------------------------------------------------------------------------------------

void UdpSocket::closed() noexcept {
  ethernet::bursts().send_all();
  std::uint16_t claimed = 0;
  {
    const std::lock_guard guard(flows_.setup_lock());
    describe();
    write_statistics_file(statistics_.slot());
    claimed = flows_.end();
    inheritance_.leave();
  }
  callback_.end();
  if (claimed != 0) port_claims().leave(claimed, *this);
}

void UdpSocket::descriptor_closed(int fd) noexcept {
  if (fd != kernel_.fd()) return;
  const auto other = runtime::fd_table().number_of(*this);
  kernel_.set_fd(other.value_or(-1));
  if (other) notify_watchers();  // a thread that is about to sleep on `fd` must look again
}

}  // namespace ringsock::vma
