#include "core/extra_api/shared_ring.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <array>
#include <cerrno>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "core/base/at_fork.h"
#include "core/base/process_state.h"
#include "core/base/unique_fd.h"
#include "core/extra_api/api_socket.h"
#include "core/extra_api/polled_ring.h"
#include "core/poll/epoll_set.h"
#include "core/poll/socket_calls.h"
#include "core/runtime/fd_table.h"
#include "core/runtime/fork_registry.h"

namespace ringsock::vma {

namespace {

/// The endpoint under the ring's descriptor: readable while the program would find something. In a forked child poll(2)
/// reports POLLHUP.
class SharedRingDescriptor final : public runtime::Endpoint, public PolledRing {
 public:
  explicit SharedRingDescriptor(SharedRing& ring) : ring_(ring), follower_(*this) {
    runtime::fork_registry().enter(*this);
  }
  ~SharedRingDescriptor() override {
    const std::shared_lock teardown(runtime::fork_registry().teardown_gate());
    runtime::fork_registry().leave(*this);
    ring_.set().remove_watch(follower_);
  }

  std::uint32_t ready() noexcept override {
    if (!ring_.is_ours()) return EPOLLERR | EPOLLHUP;
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
    if (!ring_.is_ours()) return Error{EBADFD, "socketxtreme_poll: the ring of another process"};
    return ring_.collect(out);
  }
  [[nodiscard]] bool is_of(const SharedRing& ring) const { return &ring_ == &ring; }

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

  SharedRing& ring_;
  Follower follower_;
  std::atomic<bool> follows_{false};
};

}  // namespace

// -- sockets

SharedRing::SharedRing(runtime::Ref set) : set_(std::move(set)), process_(fork_generation()) {}

bool SharedRing::is_ours() const noexcept { return process_ == fork_generation(); }

/// Errors are without effect: the socket is not found by the ring's look then.
void SharedRing::control(int op, PolledStream& stream, int fd) noexcept try {
  const epoll_event wish{.events = stream.wished_events() | EPOLLET, .data = {.ptr = &stream}};
  static_cast<void>(set_->as_epoll_set()->control_member(op, fd, stream.endpoint(), &wish));
} catch (const std::bad_alloc&) {
}

void SharedRing::join(PolledStream& stream, int fd, bool has_called_connect) noexcept {
  try {
    const std::lock_guard guard(lock_);
    if (!members_.emplace(&stream, fd).second) return;
  } catch (const std::bad_alloc&) {
    return;
  }
  stream.joined(has_called_connect);
  control(EPOLL_CTL_ADD, stream, fd);
}

void SharedRing::wishes_changed(PolledStream& stream) noexcept {
  int fd = -1;
  {
    const std::lock_guard guard(lock_);
    const auto known = members_.find(&stream);
    if (known == members_.end()) return;
    fd = known->second;
  }
  control(EPOLL_CTL_MOD, stream, fd);
}

/// Returns the number by which the set knows it, nothing when it was none of the ring's.
std::optional<int> SharedRing::take_out(PolledStream& stream) noexcept {
  const std::lock_guard guard(lock_);
  unlist_locked(stream);
  const auto known = members_.find(&stream);
  if (known == members_.end()) return std::nullopt;
  const int fd = known->second;
  members_.erase(known);
  return fd;
}

void SharedRing::leave(PolledStream& stream) noexcept {
  if (const auto fd = take_out(stream)) control(EPOLL_CTL_DEL, stream, *fd);
}

/// The set has no reference either. What it has left to the kernel is in its epoll file.
void SharedRing::forget(PolledStream& stream) noexcept {
  const auto fd = take_out(stream);
  if (fd && stream.endpoint().has_left_to_kernel()) set_->as_epoll_set()->forget_left(*fd);
}

void SharedRing::list_and_wake(PolledStream& stream) noexcept {
  list(stream);
  set_->notify_watchers(EPOLLIN);
}

void SharedRing::tell_and_wake(int fd, std::uint64_t user_data, std::uint32_t events) noexcept {
  tell_of_kernels(fd, user_data, events);
  set_->notify_watchers(EPOLLIN);
}

// -- the program

/// Lists the sockets that have news.
void SharedRing::look() {
  std::array<epoll_event, 64> news;
  const auto found = set_->as_epoll_set()->look_once(news);
  if (!found || *found == 0) return;
  const std::lock_guard guard(lock_);
  for (const epoll_event& one : std::span(news).first(static_cast<std::size_t>(*found))) {
    const auto known = members_.find(static_cast<PolledStream*>(one.data.ptr));  // it may be gone by now
    if (known != members_.end()) list_locked(*known->first);
  }
}

std::size_t SharedRing::collect(std::span<vma_completion_t> out) {
  look();
  return PolledStreams::collect(out);
}

bool SharedRing::has_news() {
  look();
  return are_any_listed();
}

// -- that of the process

namespace {

/// The lock is a leaf. So what it guards is made, and destroyed, without it.
class RingOfProcess {
 public:
  static constexpr ProcessPart kPart = ProcessPart::shared_ring;
  RingOfProcess() { hold_across_fork(lock_); }

  [[nodiscard]] SharedRing* get() const noexcept {
    SharedRing* const known = ring_.load(std::memory_order_acquire);
    return known != nullptr && known->is_ours() ? known : nullptr;
  }
  Result<int> descriptor();

 private:
  struct Descriptor {
    int fd = -1;
    runtime::Ref endpoint{};
  };
  Result<SharedRing*> made();
  std::optional<int> known_descriptor(const SharedRing& ring);
  [[nodiscard]] std::optional<int> known_locked(const SharedRing& ring) const;
  static Result<Descriptor> make_descriptor(SharedRing& ring);

  std::atomic<SharedRing*> ring_{nullptr};
  Mutex lock_;
  Descriptor descriptor_;
};

/// Returns the number of the descriptor, unless the program has closed it.
std::optional<int> RingOfProcess::known_descriptor(const SharedRing& ring) {
  const std::lock_guard guard(lock_);
  return known_locked(ring);
}

std::optional<int> RingOfProcess::known_locked(const SharedRing& ring) const {
  const auto& [fd, endpoint] = descriptor_;
  if (!endpoint || !runtime::fd_table().refers_to(fd, *endpoint)) return std::nullopt;
  return static_cast<const SharedRingDescriptor&>(*endpoint).is_of(ring) ? std::optional(fd) : std::nullopt;
}

/// The number is a low one: programs pass it to select(2).
Result<RingOfProcess::Descriptor> RingOfProcess::make_descriptor(SharedRing& ring) {
  UniqueFd number(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!number) return Error::last("eventfd");
  Descriptor out{number.get(), runtime::Ref(new SharedRingDescriptor(ring))};
  if (Status entered = runtime::fd_table().insert(number.get(), runtime::Ref::share(*out.endpoint)); !entered)
    return entered.error();
  static_cast<void>(number.release());
  return out;
}

/// Brings the sockets in that there are.
void join_all() {
  struct Socket {
    int fd;
    runtime::Ref endpoint;
  };
  std::vector<Socket> all;
  runtime::fd_table().for_each([&](int fd, runtime::Endpoint& endpoint) {
    if (!endpoint.is_datagram() && endpoint.as_epoll_set() == nullptr && endpoint.as_polled_ring() == nullptr)
      all.push_back({fd, runtime::Ref::share(endpoint)});
  });
  for (const Socket& one : all) join_shared_ring(one.fd, false);
}

/// Returns the ring; makes it if there is none.
Result<SharedRing*> RingOfProcess::made() {
  SharedRing* before = ring_.load(std::memory_order_acquire);  // perhaps the parent's
  if (SharedRing* const known = get()) return known;
  auto set = runtime::EpollSet::create_unnamed();
  if (!set) return set.error();
  auto mine = std::make_unique<SharedRing>(*std::move(set));
  if (!ring_.compare_exchange_strong(before, mine.get(), std::memory_order_acq_rel)) return before;
  SharedRing* const ring = mine.release();
  join_all();
  return ring;
}

Result<int> RingOfProcess::descriptor() {
  const auto ring = made();
  if (!ring) return ring.error();
  if (const auto known = known_descriptor(**ring)) return *known;
  auto mine = make_descriptor(**ring);
  if (!mine) return mine.error();
  const int fd = mine->fd;
  {
    const std::lock_guard guard(lock_);
    const auto meanwhile = known_locked(**ring);  // by another thread
    if (!meanwhile) {
      std::swap(descriptor_, *mine);
      return fd;
    }
  }
  static_cast<void>(runtime::close_descriptor(fd, runtime::WaitingCalls::end));
  return descriptor();
}

}  // namespace

SharedRing* shared_ring() noexcept { return process_state<RingOfProcess>().get(); }

Result<int> shared_ring_descriptor() { return process_state<RingOfProcess>().descriptor(); }

void join_shared_ring(int fd, bool has_called_connect) noexcept {
  SharedRing* const ring = shared_ring();
  if (ring == nullptr) [[likely]]
    return;
  const runtime::Ref endpoint = runtime::fd_table().get(fd);
  ApiSocket* const socket = endpoint ? endpoint->as_api_socket() : nullptr;
  PolledStream* const stream = socket != nullptr ? socket->polled_stream() : nullptr;
  if (stream != nullptr) ring->join(*stream, fd, has_called_connect);
}

}  // namespace ringsock::vma
