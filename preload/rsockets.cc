// What the preload libraries bring of rsockets: streams, for sockets that preload_config(5) leaves to them, the
// hand-overs of their connections, and UDP sockets with rings beside the kernel's. The calls know ways by their
// interface only.
#include <mellanox/vma_extra.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>

#include "core/base/at_fork.h"
#include "core/base/log.h"
#include "core/base/rare_calls.h"
#include "core/extra_api/extra_api.h"
#include "core/runtime/rcu.h"
#include "core/statistics/statistics.h"
#include "core/transports/chosen_socket.h"
#include "core/transports/hand_overs.h"
#include "core/transports/rules.h"
#include "librsocket/fork_mover.h"
#include "librsocket/hand_over/door.h"
#include "librsocket/hand_over/ring_hand_overs.h"
#include "librsocket/option_values.h"
#include "librsocket/rsocket_library.h"
#include "librsocket/rsocket_process.h"
#include "librsocket/udp/udp_socket.h"
#include "preload/shell.h"

// recvfrom(2) of this library, by the name that the linker does not send to libc (preload/route.h).
extern "C" decltype(recvfrom) ringsock_recvfrom;

namespace ringsock::preload {

namespace {

/// Reads the configuration and begins the statistics.
void ensure_begun() { [[maybe_unused]] static const bool begun = (rs::share_ports_with_kernel(), rs::process(), true); }

/// Returns whether a seccomp filter permits what statistics need: the process id, and reading files when they begin.
bool may_count() {
  using enum RareCall;
  for (const RareCall call : {getpid, fstat, fstat_at, faccessat2}) {
    if (!is_permitted(call)) return false;
  }
  return true;
}

/// Returns whether this process can have rings at all.
bool may_use_rings() {
  if (!is_known_process()) return false;  // made without fork(3): the library's state belongs to its parent
  if (!are_rings_permitted()) {
    if (may_count()) {
      ensure_begun();
      runtime::process_statistics.count_kernel_connected(runtime::KernelReason::filter);
    }
    return false;
  }
  ensure_begun();
  [[maybe_unused]] static const bool quick = (runtime::rcu_use_membarrier(), true);
  return true;
}

bool may_offload(int domain, int type, int protocol) {
  if (domain != AF_INET && domain != AF_INET6) return false;
  if ((type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC)) != SOCK_STREAM) return false;
  if (protocol != 0 && protocol != IPPROTO_TCP) return false;
  if (!transports::is_offloading() || !may_use_rings()) return false;
  return !rs::process().registry.empty() && transports::permits_socket(domain, type, IPPROTO_TCP);
}

bool may_carry_datagrams(int domain, int type, int protocol) {
  if (domain != AF_INET && domain != AF_INET6) return false;
  if ((type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC)) != SOCK_DGRAM) return false;
  if (protocol != 0 && protocol != IPPROTO_UDP) return false;
  if (!transports::is_offloading() || !is_known_process() || !are_rings_permitted()) return false;
  ensure_begun();
  const config::RsocketConfig& config = rs::process().config;
  const bool has_embedded_device =
      config.device == config::DeviceChoice::automatic || config.device == config::DeviceChoice::soft;
  return config.datagrams_by_ring != 0 && has_embedded_device &&
         transports::permits_socket(domain, SOCK_DGRAM, IPPROTO_UDP);
}

runtime::Ref make_datagrams(int fd, int domain, int /*type*/) { return runtime::Ref(new rs::UdpSocket(domain, fd)); }

/// RS_SQ_SIZE, RS_RQ_SIZE and RS_INLINE, as rdma-core's librspreload has them: for each socket, instead of the files of
/// rsocket.conf(5). What is no number, or out of range, has no effect.
struct QueueSizes {
  struct Variable {
    const char* name;
    int option;  ///< of SOL_RDMA
    int most;
    std::optional<int> value{};
  };
  std::array<Variable, 3> all{Variable{"RS_SQ_SIZE", rs::kRdmaSqSize, rs::kMaxQueue},
                              Variable{"RS_RQ_SIZE", rs::kRdmaRqSize, rs::kMaxQueue},
                              Variable{"RS_INLINE", rs::kRdmaInline, 65535}};

  QueueSizes() {
    for (Variable& one : all) {
      const char* const text = ::secure_getenv(one.name);
      if (text == nullptr) continue;
      int number = 0;
      const auto [end, error] = std::from_chars(text, text + std::strlen(text), number);
      if (error == std::errc() && *end == '\0' && number >= 0 && number <= one.most) {
        one.value = number;
      } else {
        log_warn("%s: \"%s\" is no number from 0 to %d; it has no effect", one.name, text, one.most);
      }
    }
  }
  void give_to(rs::StreamSocket& stream) const {
    for (const Variable& one : all) {
      if (one.value) static_cast<void>(stream.set_option(rs::kSolRdma, one.option, &*one.value, sizeof *one.value));
    }
  }
};

const QueueSizes& queue_sizes() {
  static const QueueSizes sizes;
  return sizes;
}
// Before there are threads, one of which might fork meanwhile.
[[gnu::constructor]] void read_queue_sizes() { queue_sizes(); }

class StreamMaker final : public transports::WayMaker {
 public:
  [[nodiscard]] std::unique_ptr<transports::Way> make_way(transports::ChosenSocket& socket, int domain,
                                                          int fd) const override {
    auto stream = std::make_unique<rs::StreamSocket>(socket, rs::process(), domain, fd);
    stream->options().buffer_like_kernel();
    queue_sizes().give_to(*stream);
    stream->connector().have_other_way(std::chrono::milliseconds(rs::process().config.connect_patience));
    return stream;
  }
  [[nodiscard]] std::unique_ptr<transports::Mover> make_mover(transports::ChosenSocket& socket,
                                                              transports::Way& way) const override {
    if (!rs::is_fork_mode()) return nullptr;
    return std::make_unique<rs::ForkMover>(socket, static_cast<rs::StreamSocket&>(way));
  }
  [[nodiscard]] bool permits(int domain, const SocketAddress& address, config::VmaRole role) const override {
    return transports::permits_address(domain, address, role);
  }
  [[nodiscard]] bool has_port_unseen(const SocketAddress& address) const override {
    return rs::process().registry.has_port_unseen(verbs::PortSpace::tcp, address);
  }
  [[nodiscard]] transports::ShortConnections* short_connections() const override {
    rs::Process& process = rs::process();
    return process.config.short_by_kernel != 0 ? &process.short_connections : nullptr;
  }
};

runtime::Ref make_stream(int fd, int domain, int type) {
  static constexpr StreamMaker maker;
  runtime::Ref socket(new transports::ChosenSocket(maker, domain, fd));
  socket->way()->close_on_exec.store((type & SOCK_CLOEXEC) != 0);
  return socket;
}

/// Before the program begins, and forks.
[[gnu::constructor]] void prepare() {
  rs::prepare_fork_mode();
  if (is_calling_shell()) rs::let_others_ask();
}
[[gnu::destructor]] void finish_answers_at_exit() {
  if (is_calling_shell()) rs::finish_answers();
}

}  // namespace

namespace {

constexpr rs::RsocketLibrary kLibrary(&ringsock_recvfrom);

/// vma_get_api(): what rsockets do of VMA's Extra API.
bool answer_extra_api(int level, int name, void* value, socklen_t* length) {
  return vma::answer_library_option(kLibrary, level, name, value, length);
}

}  // namespace

void add_rsockets() {
  transports::bring_hand_overs(rs::ring_hand_overs());
  vma::offer_for_extra_api(kLibrary);
  add_way({.reach = SocketWay::Reach::this_host,
           .may_carry = &may_offload,
           .make = &make_stream,
           .answer_option = &answer_extra_api,
           .send_flags = VMA_SND_FLAGS_DUMMY,
           .has_user_data = true});
  add_way({.reach = SocketWay::Reach::this_host, .may_carry = &may_carry_datagrams, .make = &make_datagrams});
}

}  // namespace ringsock::preload
