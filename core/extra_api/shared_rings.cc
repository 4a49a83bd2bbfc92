#include "core/extra_api/shared_rings.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <utility>

#include "core/base/abandon.h"
#include "core/base/at_fork.h"
#include "core/base/unique_fd.h"
#include "core/extra_api/api_socket.h"
#include "core/extra_api/extra_api.h"
#include "core/extra_api/polled_ring.h"
#include "core/poll/epoll_set.h"
#include "core/poll/socket_calls.h"
#include "core/runtime/fd_table.h"
#include "core/runtime/fork_registry.h"

namespace ringsock::vma {

namespace {

/// The endpoint under a ring's descriptor: readable while the program would find something. In a forked child, and once
/// the ring has ended, poll(2) reports POLLHUP.
class SharedRingDescriptor final : public runtime::Endpoint, public PolledRing {
 public:
  explicit SharedRingDescriptor(SharedRing& ring) : ring_(ring), number_(ring.number()), follower_(*this) {
    ring_.descriptor_made();
    runtime::fork_registry().enter(*this);
  }
  ~SharedRingDescriptor() override {
    const std::shared_lock teardown(runtime::fork_registry().teardown_gate());
    runtime::fork_registry().leave(*this);
    ring_.set().remove_watch(follower_);
    ring_.descriptor_gone();
  }

  std::uint32_t ready() noexcept override {
    if (is_over()) return EPOLLERR | EPOLLHUP;
    try {
      return ring_.has_news() ? std::uint32_t{EPOLLIN} : 0;
    } catch (const std::bad_alloc&) {
      return EPOLLIN;
    }
  }
  /// A sleeper must also hear of what other threads find meanwhile.
  runtime::WaitFds arm() noexcept override {
    if (!ring_.is_ours()) return {};
    if (!follows_.exchange(true)) ring_.set().add_watch(follower_);
    return ring_.set().arm();
  }
  void woken() noexcept override {
    if (ring_.is_ours()) ring_.set().woken();
  }
  Nanos deadline() noexcept override { return ring_.is_ours() ? ring_.set().deadline() : Nanos::max(); }
  [[nodiscard]] bool rings_for_each_arrival() const noexcept override { return true; }
  void closed() noexcept override {}
  PolledRing* as_polled_ring() noexcept override { return this; }

  Result<std::size_t> collect(std::span<vma_completion_t> out) override {
    if (is_over()) return Error{EBADFD, "socketxtreme_poll: the ring has ended, or is another process's"};
    return ring_.collect(out);
  }

 private:
  /// Passes on what the epoll set tells.
  class Follower final : public runtime::Watch {
   public:
    explicit Follower(SharedRingDescriptor& descriptor) : descriptor_(descriptor) {}
    void endpoint_changed() noexcept override {
      descriptor_.note_activity(EPOLLIN);
      descriptor_.notify_watchers(EPOLLIN);
    }
    [[nodiscard]] bool belongs_to_thread() const noexcept override { return false; }

   private:
    SharedRingDescriptor& descriptor_;
  };

  [[nodiscard]] bool is_over() const noexcept { return !ring_.is_ours() || ring_.number() != number_; }

  SharedRing& ring_;
  const std::uint64_t number_;
  Follower follower_;
  std::atomic<bool> follows_{false};
};

struct Descriptor {
  int fd = -1;
  runtime::Ref endpoint{};
};

/// The number is a low one: programs pass it to select(2).
Result<Descriptor> make_descriptor(SharedRing& ring) {
  UniqueFd number(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!number) return Error::last("eventfd");
  Descriptor out{number.get(), runtime::Ref(new SharedRingDescriptor(ring))};
  if (Status entered = runtime::fd_table().insert(number.get(), runtime::Ref::share(*out.endpoint)); !entered)
    return entered.error();
  static_cast<void>(number.release());
  return out;
}

}  // namespace

// -- rings

SharedRings::SharedRings() : generation_(fork_generation()), begun_in_(generation_) { hold_across_fork(lock_); }

SharedRings& shared_rings() { return process_state<SharedRings>(); }

bool SharedRings::begins_in_child() noexcept {
  const std::lock_guard guard(lock_);
  return std::exchange(begun_in_, fork_generation()) != fork_generation();
}

/// Returns a ring that has one user more; null: there is none, and one more may be made.
SharedRing* SharedRings::find_locked(const runtime::RingKey& key, std::size_t most_rings) {
  // In a forked child the rings of its parent may be locked by threads that are not here.
  if (std::exchange(generation_, fork_generation()) != fork_generation()) {
    abandon(all_);
    known_.clear();
    ended_.clear();
  }
  SharedRing* ring = nullptr;
  if (const auto known = known_.find(key); known != known_.end()) {
    ring = known->second;
  } else {
    end_unused_locked();
    if (most_rings == 0 || known_.size() < most_rings) return nullptr;
    const auto has_fewer = [](const auto& a, const auto& b) { return a.second->place_.users < b.second->place_.users; };
    ring = std::min_element(known_.begin(), known_.end(), has_fewer)->second;
  }
  ++ring->place_.users;
  return ring;
}

/// Returns a ring that has ended, and that nobody polls any more; null: there is none.
SharedRing* SharedRings::take_ended_locked() {
  const auto is_free = [](const SharedRing* one) {
    return !one->place_.descriptor && one->descriptors_.load(std::memory_order_acquire) == 0;
  };
  const auto known = std::find_if(ended_.begin(), ended_.end(), is_free);
  if (known == ended_.end()) return nullptr;
  SharedRing* const ring = *known;
  ended_.erase(known);
  return ring;
}

Result<SharedRing*> SharedRings::enter(const runtime::RingKey& key, std::size_t most_rings) {
  std::unique_ptr<SharedRing> made;
  while (true) {
    {
      const std::lock_guard guard(lock_);
      if (SharedRing* const known = find_locked(key, most_rings)) return known;
      SharedRing* ring = take_ended_locked();
      if (ring == nullptr && made) {
        ended_.reserve(all_.size() + 1);
        ring = all_.emplace_back(std::move(made)).get();
      }
      if (ring != nullptr) {
        known_.emplace(key, ring);
        ring->place_.key = key;
        ring->place_.users = 1;
        return ring;
      }
    }
    close_ended();
    auto set = runtime::EpollSet::create_unnamed();
    if (!set) return set.error();
    made = std::make_unique<SharedRing>(*std::move(set));
  }
}

void SharedRings::enter_again(SharedRing& ring) noexcept {
  const std::lock_guard guard(lock_);
  ++ring.place_.users;
}

/// Returns whether the ring has ended: it has no users, its key does not last, and it has nothing left to tell to a
/// program that could ask.
bool SharedRings::end_if_unused_locked(SharedRing& ring) noexcept {
  if (ring.place_.users != 0 || ring.place_.key.is_lasting()) return false;
  if (descriptor_locked(ring) && ring.has_to_tell()) return false;
  ring.end();
  ended_.push_back(&ring);
  return true;
}

/// Ends those that had something left to tell, and have told it.
void SharedRings::end_unused_locked() {
  std::erase_if(known_, [this](const auto& one) { return end_if_unused_locked(*one.second); });
}

void SharedRings::leave(SharedRing& ring) noexcept {
  {
    const std::lock_guard guard(lock_);
    --ring.place_.users;
    const runtime::RingKey key = ring.place_.key;
    if (!end_if_unused_locked(ring)) return;
    known_.erase(key);
  }
  ring.set().notify_watchers(EPOLLIN | EPOLLHUP);
}

// -- descriptors

std::optional<int> SharedRings::descriptor_locked(const SharedRing& ring) {
  const auto& [key, users, fd, endpoint] = ring.place_;
  return endpoint && runtime::fd_table().refers_to(fd, *endpoint) ? std::optional(fd) : std::nullopt;
}

/// Closes the descriptors of rings that have ended.
void SharedRings::close_ended() {
  std::vector<Descriptor> open;
  {
    const std::lock_guard guard(lock_);
    for (SharedRing* const one : ended_) {
      if (one->place_.descriptor) open.push_back({one->place_.fd, std::exchange(one->place_.descriptor, {})});
    }
  }
  for (const Descriptor& one : open) {
    if (runtime::fd_table().refers_to(one.fd, *one.endpoint))
      static_cast<void>(runtime::close_descriptor(one.fd, runtime::WaitingCalls::end));
  }
}

Result<int> SharedRings::descriptor(SharedRing& ring) {
  close_ended();
  while (true) {
    {
      const std::lock_guard guard(lock_);
      if (const auto known = descriptor_locked(ring)) return *known;
    }
    auto mine = make_descriptor(ring);
    if (!mine) return mine.error();
    const int fd = mine->fd;
    {
      const std::lock_guard guard(lock_);
      if (!descriptor_locked(ring)) {  // otherwise another thread has made one meanwhile
        ring.place_.fd = fd;
        std::swap(ring.place_.descriptor, mine->endpoint);
        return fd;
      }
    }
    static_cast<void>(runtime::close_descriptor(fd, runtime::WaitingCalls::end));
  }
}

// -- sockets

namespace {

/// Returns null when the socket has none, because there is no memory, or it is closed.
SharedRing* join(PolledStream& stream, int fd, bool has_called_connect) noexcept try {
  if (SharedRing* const known = stream.shared_ring()) return known;
  const ApiLibrary::RingSettings settings = library_of_extra_api().ring_settings();
  const auto ring = shared_rings().enter(stream.ring_key(settings.logic), settings.most_rings);
  if (!ring) return nullptr;
  if ((*ring)->take_in(stream, fd, has_called_connect)) return *ring;
  shared_rings().leave(**ring);
  return stream.shared_ring();
} catch (const std::bad_alloc&) {
  return nullptr;
}

/// Returns the stream of a socket that has begun to listen or connect, or null.
PolledStream* stream_of(const runtime::Ref& endpoint) {
  ApiSocket* const socket = endpoint ? endpoint->as_api_socket() : nullptr;
  return socket != nullptr ? socket->polled_stream() : nullptr;
}

/// Sockets that a forked child has from its parent get rings of the child.
void join_all() {
  std::vector<Descriptor> all;
  runtime::fd_table().for_each([&](int fd, runtime::Endpoint& endpoint) {
    if (!endpoint.is_datagram() && endpoint.as_epoll_set() == nullptr && endpoint.as_polled_ring() == nullptr)
      all.push_back({fd, runtime::Ref::share(endpoint)});
  });
  for (const Descriptor& one : all) join_shared_ring(one.fd, false);
}

}  // namespace

bool are_shared_rings_wanted() noexcept {
  const ApiLibrary* const library = known_library_of_extra_api();
  return library != nullptr && library->has_events();
}

Result<int> shared_ring_descriptor(int fd) {
  if (shared_rings().begins_in_child()) join_all();
  const runtime::Ref endpoint = runtime::fd_table().get(fd);
  PolledStream* const stream = stream_of(endpoint);
  if (stream == nullptr) return Error{EINVAL, "get_socket_rings_fds: no ring"};
  SharedRing* const ring = join(*stream, fd, false);
  return ring != nullptr ? shared_rings().descriptor(*ring) : Error{ENOMEM, "get_socket_rings_fds"};
}

void join_shared_ring(int fd, bool has_called_connect) noexcept {
  if (!are_shared_rings_wanted()) [[likely]]
    return;
  const runtime::Ref endpoint = runtime::fd_table().get(fd);
  if (PolledStream* const stream = stream_of(endpoint)) static_cast<void>(join(*stream, fd, has_called_connect));
}

void join_listeners_ring(SharedRing& ring, int fd) noexcept {
  const runtime::Ref endpoint = runtime::fd_table().get(fd);
  PolledStream* const stream = stream_of(endpoint);
  if (stream == nullptr || stream->shared_ring() != nullptr) return;
  shared_rings().enter_again(ring);
  if (!ring.take_in(*stream, fd, false)) shared_rings().leave(ring);
}

}  // namespace ringsock::vma
