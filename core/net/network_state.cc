#include "core/net/network_state.h"

#include <sys/socket.h>
// Included here, because <linux/if.h> leaves out what the header above defines.
#include <linux/if.h>

#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "core/base/log.h"
#include "core/base/mutex.h"
#include "core/net/kernel.h"
#include "core/net/network_tables.h"

namespace ringsock::net {

namespace {

constexpr int kAttempts = 4;
constexpr int kBatches = 64;
constexpr std::chrono::milliseconds kRetryTablesAfter{100};

using Listener = std::function<void(const NetworkChange&)>;

}  // namespace

/// Lock order: opening_, then lock_. The kernel is asked without lock_, because answers take microseconds and its
/// events have a lock of their own.
class NetworkState::Impl {
 public:
  Impl(std::unique_ptr<Kernel> kernel, std::atomic<std::uint64_t>& generation)
      : kernel_(std::move(kernel)), generation_(generation) {}

  Status read_tables();
  Status ensure_current();
  [[nodiscard]] int fd() const { return kernel_->fd(); }

  void process_events();
  ListenerId add_listener(Listener listener);
  void remove_listener(ListenerId id);

  Result<Path> path_to(const PathQuery& query);
  void forget_paths_to(const IpAddress& destination);
  std::shared_ptr<Neighbour> neighbour(const Path& path);
  std::shared_ptr<Neighbour> neighbour(int ifindex, const IpAddress& next_hop);
  Status request_resolution(const Neighbour& neighbour);

  [[nodiscard]] std::optional<std::string> filter_of(int family, std::string_view device) const {
    return kernel_->filter_of(family, device);
  }
  template <class Read>
  auto read_links(Read read) {
    const std::lock_guard guard(lock_);
    return read(std::as_const(tables_.links));
  }

  void before_fork();
  void after_fork_in_parent();
  void after_fork_in_child();

 private:
  Status ensure_link(int ifindex);
  static PathQuery as_asked(const PathQuery& query, bool ports_decide);
  void keep(const PathQuery& question, const PathAnswer& answer);
  NeighbourFacts ask_neighbour(int ifindex, const IpAddress& address);
  void ask_neighbour_into_table(Neighbour& neighbour);
  void resync(EventEffects& effects);
  bool begin_processing();
  void end_processing();
  void take_events(EventEffects& effects);
  void finish(EventEffects& effects);
  void tell_listeners(const std::vector<NetworkChange>& changes);
  void arm_timer();
  void next_generation() { generation_.fetch_add(1, std::memory_order_relaxed); }

  const std::unique_ptr<Kernel> kernel_;
  std::atomic<std::uint64_t>& generation_;

  std::mutex opening_;
  std::atomic<bool> inherited_{false};  ///< in a child: the sockets and tables are the parent's

  Mutex lock_;  ///< guards the members below
  NetworkTables tables_;
  std::map<ListenerId, std::shared_ptr<const Listener>> listeners_;
  ListenerId next_listener_ = 1;
  Nanos armed_for_{};
  Nanos retry_tables_at_{};  ///< 0: the tables are complete

  std::atomic<bool> processing_{false};
  std::atomic<std::thread::id> processor_{};
  bool events_lost_ = false;  ///< only the processing thread accesses it
};

// -- keeping up to date ----------------------------------------------------------------------------

Status NetworkState::Impl::read_tables() {
  for (int attempt = 1;; ++attempt) {
    std::uint64_t events_before = 0;
    {
      const std::lock_guard guard(lock_);
      events_before = tables_.links.events();
    }
    const auto tables = kernel_->read_tables();
    if (!tables) return tables.error();
    const std::lock_guard guard(lock_);
    const bool is_current = events_before == tables_.links.events();
    if (!is_current && attempt < kAttempts) continue;
    tables_.replace_links(*tables);
    retry_tables_at_ = is_current ? Nanos{} : kernel_->now() + Nanos(kRetryTablesAfter);
    arm_timer();
    return ok();
  }
}

Status NetworkState::Impl::ensure_current() {
  if (!inherited_.load(std::memory_order_acquire)) return ok();
  const std::lock_guard guard(opening_);
  if (!inherited_.load(std::memory_order_relaxed)) return ok();
  if (const Status status = kernel_->reopen(); !status) return status;
  EventEffects effects;
  resync(effects);
  inherited_.store(false, std::memory_order_release);
  return ok();
}

/// Reads all tables again, as far as that is possible. The caller informs the listeners.
void NetworkState::Impl::resync(EventEffects& effects) {
  const Status status = read_tables();
  if (!status) log_debug("network tables: %s: error %d", status.error().where, status.error().code);
  std::vector<std::shared_ptr<Neighbour>> neighbours;
  {
    const std::lock_guard guard(lock_);
    if (!status) retry_tables_at_ = kernel_->now() + Nanos(kRetryTablesAfter);
    neighbours = tables_.neighbours.all();
  }
  for (const auto& neighbour : neighbours) ask_neighbour_into_table(*neighbour);
  const std::lock_guard guard(lock_);
  tables_.forget_routing(AF_UNSPEC);
  effects.changes.push_back({NetworkChange::What::everything, 0, {}});
  next_generation();
  arm_timer();
}

void NetworkState::Impl::arm_timer() {
  Nanos when = tables_.deadline();
  if (retry_tables_at_ != Nanos{} && (when == Nanos{} || retry_tables_at_ < when)) when = retry_tables_at_;
  if (when == armed_for_) return;
  armed_for_ = when;
  kernel_->wake_at(when);
}

bool NetworkState::Impl::begin_processing() {
  if (processing_.exchange(true, std::memory_order_acquire)) return false;
  processor_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  return true;
}

void NetworkState::Impl::end_processing() {
  processor_.store({}, std::memory_order_relaxed);
  processing_.store(false, std::memory_order_release);
  processing_.notify_all();
}

void NetworkState::Impl::process_events() {
  if (!ensure_current() || !begin_processing()) return;
  // Runs even when memory runs out meanwhile: otherwise no thread would process events any more.
  const std::unique_ptr<Impl, decltype([](Impl* impl) { impl->end_processing(); })> at_the_end(this);
  EventEffects effects;
  take_events(effects);
  finish(effects);
}

void NetworkState::Impl::take_events(EventEffects& effects) {
  bool drained = false;
  for (int i = 0; i < kBatches && !drained; ++i) {
    const KernelEvents got = kernel_->read_events();
    events_lost_ = events_lost_ || got.lost;
    drained = !got.more;
    const std::lock_guard guard(lock_);
    tables_.apply(got.events, kernel_->now(), effects);
  }
  Nanos retry{};
  {
    const std::lock_guard guard(lock_);
    if (armed_for_ <= kernel_->now()) armed_for_ = {};  // the timer has expired
    tables_.apply_time(kernel_->now(), effects);
    if (effects.matters) next_generation();
    retry = retry_tables_at_;
  }
  // Old events must be taken first: they would overwrite the new tables.
  const bool again = retry != Nanos{} && retry <= kernel_->now();
  if ((events_lost_ && drained) || again) {
    events_lost_ = false;
    resync(effects);
  }
  const std::lock_guard guard(lock_);
  arm_timer();
}

void NetworkState::Impl::finish(EventEffects& effects) {
  for (const auto& neighbour : effects.to_refresh) static_cast<void>(request_resolution(*neighbour));
  if (effects.paths) effects.changes.push_back({NetworkChange::What::paths, 0, {}});
  tell_listeners(effects.changes);
}

void NetworkState::Impl::tell_listeners(const std::vector<NetworkChange>& changes) {
  if (changes.empty()) return;
  std::vector<ListenerId> ids;
  {
    const std::lock_guard guard(lock_);
    for (const auto& [id, listener] : listeners_) ids.push_back(id);
  }
  for (const NetworkChange& change : changes) {
    for (const ListenerId id : ids) {
      std::shared_ptr<const Listener> listener;
      {
        const std::lock_guard guard(lock_);
        if (const auto found = listeners_.find(id); found != listeners_.end()) listener = found->second;
      }
      if (listener) (*listener)(change);
    }
  }
}

NetworkState::ListenerId NetworkState::Impl::add_listener(Listener listener) {
  auto shared = std::make_shared<const Listener>(std::move(listener));
  const std::lock_guard guard(lock_);
  const ListenerId id = next_listener_++;
  listeners_.emplace(id, std::move(shared));
  return id;
}

void NetworkState::Impl::remove_listener(ListenerId id) {
  {
    const std::lock_guard guard(lock_);
    listeners_.erase(id);
  }
  if (processor_.load(std::memory_order_relaxed) == std::this_thread::get_id()) return;
  processing_.wait(true, std::memory_order_acquire);
}

// -- paths -----------------------------------------------------------------------------------------

Status NetworkState::Impl::ensure_link(int ifindex) {
  {
    const std::lock_guard guard(lock_);
    if (ifindex == 0 || tables_.links.find(ifindex) != nullptr) return ok();
  }
  // The interface is new, and its event is under way. An event that repeats what these tables say does no harm.
  return read_tables();
}

/// Ports are left out where they do not matter, so that the flows between two addresses share an answer.
PathQuery NetworkState::Impl::as_asked(const PathQuery& query, bool ports_decide) {
  PathQuery out = query;
  if (!ports_decide) out.source_port = out.destination_port = 0;
  return out;
}

Result<Path> NetworkState::Impl::path_to(const PathQuery& query) {
  if (const Status status = ensure_current(); !status) return status.error();
  const int family = query.destination.family();
  for (int attempt = 1;; ++attempt) {
    std::uint64_t changes_before = 0;
    std::optional<bool> ports_decide;
    {
      const std::lock_guard guard(lock_);
      ports_decide = tables_.ports_decide(family);
      if (auto known = ports_decide ? tables_.paths.find(as_asked(query, *ports_decide)) : std::nullopt) return *known;
      changes_before = tables_.paths.changes();
    }
    if (!ports_decide) ports_decide = kernel_->ports_decide(family);
    const PathQuery question = as_asked(query, *ports_decide);
    auto answer = kernel_->path(question);
    if (!answer) return answer.error();
    if (const Status status = ensure_link(answer->path.oif); !status) return status.error();
    const std::uint8_t hop_limit = kernel_->default_hop_limit();

    const std::lock_guard guard(lock_);
    const bool is_current = changes_before == tables_.paths.changes();
    if (!is_current && attempt < kAttempts) continue;
    tables_.complete(answer->path, family, hop_limit);
    answer->path.depends_on_ports = *ports_decide;
    if (!is_current) {
      // Changes come faster than answers: this answer is used now and asked again soon.
      next_generation();
      return answer->path;
    }
    keep(question, *answer);
    return answer->path;
  }
}

/// lock_ is held.
void NetworkState::Impl::keep(const PathQuery& question, const PathAnswer& answer) {
  tables_.note_ports_decide(question.destination.family(), answer.path.depends_on_ports);
  const Nanos expires = answer.valid_for == Nanos{} ? Nanos{} : kernel_->now() + answer.valid_for;
  tables_.paths.insert(question, answer.path, expires);
  arm_timer();
}

void NetworkState::Impl::forget_paths_to(const IpAddress& destination) {
  const std::lock_guard guard(lock_);
  const auto bits = static_cast<std::uint8_t>(destination.bytes().size() * 8);
  if (tables_.paths.forget_to({destination, bits})) next_generation();
}

// -- neighbours ------------------------------------------------------------------------------------

NeighbourFacts NetworkState::Impl::ask_neighbour(int ifindex, const IpAddress& address) {
  // Kernels before 5.0 do not answer this question; request_resolution() makes their entries known.
  const auto facts = kernel_->neighbour(ifindex, address);
  return facts ? *facts : NeighbourFacts{};
}

void NetworkState::Impl::ask_neighbour_into_table(Neighbour& neighbour) {
  for (int attempt = 1;; ++attempt) {
    std::uint64_t updates_before = 0;
    {
      const std::lock_guard guard(lock_);
      updates_before = tables_.neighbours.updates();
    }
    const NeighbourFacts facts = ask_neighbour(neighbour.ifindex(), neighbour.address());
    const std::lock_guard guard(lock_);
    if (updates_before != tables_.neighbours.updates() && attempt < kAttempts) continue;
    tables_.neighbours.update(neighbour.ifindex(), neighbour.address(), facts);
    return;
  }
}

std::shared_ptr<Neighbour> NetworkState::Impl::neighbour(int ifindex, const IpAddress& next_hop) {
  static_cast<void>(ensure_current());
  std::shared_ptr<Neighbour> entry;
  {
    const std::lock_guard guard(lock_);
    entry = tables_.neighbours.find(ifindex, next_hop);
    if (entry && entry->is_known()) return entry;
    // Added to the table before the kernel is asked, so that events find it meanwhile. Another thread that finds it
    // before the answer asks, too.
    if (!entry) entry = tables_.neighbours.add(ifindex, next_hop);
  }
  ask_neighbour_into_table(*entry);
  return entry;
}

std::shared_ptr<Neighbour> NetworkState::Impl::neighbour(const Path& path) {
  const auto fixed = [&path](const MacAddress& mac) {
    return std::make_shared<Neighbour>(path.oif, path.next_hop, NeighbourFacts{NeighbourState::no_arp, mac});
  };
  switch (path.type) {
    case PathType::multicast: return fixed(multicast_mac(path.next_hop));
    case PathType::broadcast: return fixed(kBroadcastMac);
    case PathType::local:
    case PathType::unreachable: return std::make_shared<Neighbour>(path.oif, path.next_hop);
    case PathType::unicast: break;
  }
  const auto link = read_links([&](const LinkTable& links) {
    const Link* found = links.find(path.oif);
    return found != nullptr ? std::optional(*found) : std::nullopt;
  });
  if (!link || link->needs_neighbours()) return neighbour(path.oif, path.next_hop);
  // As the kernel does: links without resolution use their own address, point-to-point links the broadcast address.
  return fixed((link->flags & IFF_NOARP) != 0 || link->is_loopback() ? link->mac : link->broadcast);
}

Status NetworkState::Impl::request_resolution(const Neighbour& neighbour) {
  const NeighbourState state = neighbour.facts().state;
  // The kernel would remove "permanent" from the entry.
  if (state == NeighbourState::no_arp || state == NeighbourState::permanent) return ok();
  if (const Status status = ensure_current(); !status) return status;
  return kernel_->use_neighbour(neighbour.ifindex(), neighbour.address());
}

// -- fork(2) ---------------------------------------------------------------------------------------

void NetworkState::Impl::before_fork() {
  opening_.lock();
  lock_.lock();
  kernel_->before_fork();
}

void NetworkState::Impl::after_fork_in_parent() {
  kernel_->after_fork();
  lock_.unlock();
  opening_.unlock();
}

void NetworkState::Impl::after_fork_in_child() {
  inherited_.store(true, std::memory_order_release);
  if (processor_.load(std::memory_order_relaxed) != std::this_thread::get_id()) {
    processing_.store(false, std::memory_order_relaxed);  // the thread that processed events is not in this process
    processor_.store({}, std::memory_order_relaxed);
  }
  armed_for_ = {};
  next_generation();
  after_fork_in_parent();
}

// -- the public side -------------------------------------------------------------------------------

NetworkState::NetworkState(std::unique_ptr<Kernel> kernel)
    : impl_(std::make_unique<Impl>(std::move(kernel), generation_)) {}

NetworkState::~NetworkState() = default;

Result<std::shared_ptr<NetworkState>> NetworkState::open(std::unique_ptr<Kernel> kernel) {
  std::shared_ptr<NetworkState> state(new NetworkState(std::move(kernel)));
  if (const Status status = state->impl_->read_tables(); !status) return status.error();
  return state;
}

int NetworkState::fd() const {
  static_cast<void>(impl_->ensure_current());
  return impl_->fd();
}

void NetworkState::process_events() { impl_->process_events(); }

NetworkState::ListenerId NetworkState::add_listener(Listener listener) {
  return impl_->add_listener(std::move(listener));
}

void NetworkState::remove_listener(ListenerId listener) { impl_->remove_listener(listener); }

Result<Path> NetworkState::path_to(const PathQuery& query) { return impl_->path_to(query); }

void NetworkState::forget_paths_to(const IpAddress& destination) { impl_->forget_paths_to(destination); }

std::shared_ptr<Neighbour> NetworkState::neighbour(const Path& path) { return impl_->neighbour(path); }

std::shared_ptr<Neighbour> NetworkState::neighbour(int ifindex, const IpAddress& next_hop) {
  return impl_->neighbour(ifindex, next_hop);
}

Status NetworkState::request_resolution(const Neighbour& neighbour) { return impl_->request_resolution(neighbour); }

std::optional<Link> NetworkState::link(int ifindex) const {
  return impl_->read_links([&](const LinkTable& links) {
    const Link* found = links.find(ifindex);
    return found != nullptr ? std::optional(*found) : std::nullopt;
  });
}

std::optional<Link> NetworkState::link(std::string_view name) const {
  return impl_->read_links([&](const LinkTable& links) {
    const Link* found = links.find(name);
    return found != nullptr ? std::optional(*found) : std::nullopt;
  });
}

std::vector<Link> NetworkState::links() const {
  return impl_->read_links([](const LinkTable& links) { return links.links(); });
}

std::vector<Link> NetworkState::members_of(int ifindex) const {
  return impl_->read_links([&](const LinkTable& links) { return links.members_of(ifindex); });
}

std::vector<InterfaceAddress> NetworkState::addresses(int ifindex) const {
  return impl_->read_links([&](const LinkTable& links) { return links.addresses(ifindex); });
}

std::optional<InterfaceAddress> NetworkState::find_address(const IpAddress& address, int ifindex) const {
  return impl_->read_links([&](const LinkTable& links) { return links.find_address(address, ifindex); });
}

std::optional<std::string> NetworkState::filter_on(int family, int ifindex) const {
  const auto known = link(ifindex);
  return impl_->filter_of(family, known ? std::string_view(known->name) : std::string_view());
}

void NetworkState::before_fork() { impl_->before_fork(); }
void NetworkState::after_fork_in_parent() { impl_->after_fork_in_parent(); }
void NetworkState::after_fork_in_child() { impl_->after_fork_in_child(); }

}  // namespace ringsock::net
