// An endpoint whose readiness the test sets; its doorbell is an eventfd.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/ready_map.h"
#include "core/base/unique_fd.h"
#include "core/runtime/endpoint.h"
#include "core/runtime/fd_table.h"
#include "core/runtime/listable.h"

namespace ringsock::fakes {

/// A map of ready connections in memory of the process.
class FakeReadyMap final : public ReadyMap {
 public:
  FakeReadyMap() : ReadyMap(bits_) {}

 private:
  ReadyBits bits_{};
};

/// Behaves as a stream endpoint on the embedded device does: a change rings the doorbell only when somebody has armed
/// it since the last ring. Counts what the runtime does with it.
class FakeEndpoint final : public runtime::Endpoint, public runtime::Listable {
 public:
  // -- what the test does
  /// Its peer is a process that can set bits in a map, as those of all fakes of the same group, which is not 0.
  void join_group(std::uint64_t group) { group_ = group; }
  /// New conditions appear, as if the peer had caused them.
  void become(std::uint32_t events) {
    events_.fetch_or(events);
    note_activity();
    ring_if_armed();
  }
  /// Conditions end, as when the application has read everything.
  void lose(std::uint32_t events) { events_.fetch_and(~events); }
  /// The same, as of a peer that tells when it sent.
  void become_as_of(std::uint32_t events, std::uint32_t stamp) {
    stamp_ = stamp;
    become(events);
  }
  /// Something came that is neither data nor room, or room to somebody who lacked none: no EPOLLOUT edge.
  void arrive_without_room() {
    note_activity(EPOLLIN);
    ring_if_armed();
  }
  /// More of the same arrived: nothing changes but the activity.
  void arrive() { become(0); }
  /// A change found by another caller's work: nobody rings the doorbell.
  void become_by_other_callers_work(std::uint32_t events) {
    events_.fetch_or(events);
    note_activity();
    notify_watchers(events);
  }
  /// Time alone changed something: no doorbell, no notice (see deadline()).
  void change_silently(std::uint32_t events) { events_.fetch_or(events); }
  void set_deadline(Nanos deadline) { deadline_ = deadline; }
  /// The endpoint has another doorbell from now on, which nobody has armed, as a connect that has found its listener.
  void change_doorbell() {
    // The old one stays open. Its number must not serve again: not for the new one, or nobody could tell them apart,
    // nor for a file of another thread, which TSan would take for a race with the set that leaves the old one.
    old_doorbells_.push_back(std::exchange(doorbell_, UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC))));
    armed_.store(0);
    notify_watchers();
  }
  void wait_for_our_cpus() { waits_for_our_cpus_ = true; }
  /// Conditions that only look_for_end() finds.
  void end_unheard(std::uint32_t events) { unheard_ = events; }
  /// Runs in each ready() once the endpoint was armed: in the last look before a sleep.
  void on_armed_look(std::function<void()> action) { armed_look_ = std::move(action); }

  // -- what happened
  [[nodiscard]] int arms() const { return arms_; }
  [[nodiscard]] int wakes() const { return wakes_; }
  [[nodiscard]] int looks() const { return looks_; }
  [[nodiscard]] int rings() const { return rings_; }
  [[nodiscard]] bool is_listed() const { return (armed_.load() & kListed) != 0; }
  [[nodiscard]] ReadyMap* map() const { return map_.get(); }
  [[nodiscard]] bool was_closed() const { return was_closed_; }
  void forget_counts() { arms_ = wakes_ = looks_ = rings_ = 0; }

  /// As an operation that needs `events` would answer.
  Result<int> attempt(std::uint32_t events) {
    looks_.fetch_add(1, std::memory_order_relaxed);
    if (was_closed_) return Error{EBADF, "fake"};
    if ((events_.load() & events) == 0) return Error{EAGAIN, "fake"};
    return static_cast<int>(events_.load() & events);
  }

  // -- Endpoint
  std::uint32_t ready() noexcept override {
    looks_.fetch_add(1, std::memory_order_relaxed);
    if (arms_ > 0 && armed_look_) armed_look_();
    return events_.load();
  }
  runtime::WaitFds arm() noexcept override {
    ++arms_;
    armed_.store(kArmed);
    return {{doorbell_.get(), -1}};
  }
  void woken() noexcept override {
    ++wakes_;
    eventfd_t count = 0;
    ::eventfd_read(doorbell_.get(), &count);
  }
  void look_for_end() noexcept override {
    if (unheard_ == 0) return;
    events_.fetch_or(std::exchange(unheard_, 0));
    note_activity();
  }
  std::uint32_t arrival_stamp() noexcept override { return stamp_; }
  Nanos deadline() noexcept override { return deadline_; }
  [[nodiscard]] bool waits_for_our_cpus() const noexcept override { return waits_for_our_cpus_; }
  void closed() noexcept override { was_closed_ = true; }
  runtime::Listable* listable() noexcept override { return group_ != 0 ? this : nullptr; }

  // -- Listable
  std::uint64_t peer_group() noexcept override { return group_; }
  Result<std::shared_ptr<ReadyMap>> make_ready_map() noexcept override {
    return std::shared_ptr<ReadyMap>(std::make_shared<FakeReadyMap>());
  }
  Listing list_at(const std::shared_ptr<ReadyMap>& map, std::uint32_t place) noexcept override {
    map_ = map;
    rung_for_ = 0;
    std::uint32_t armed = kArmed;
    if (!armed_.compare_exchange_strong(armed, kListed | place)) return {};
    return {armed_, kListed | place};
  }
  [[nodiscard]] bool has_unread() const noexcept override { return (events_.load() & EPOLLIN) != 0; }
  void unlist() noexcept override { armed_.store(0); }
  void add_hot_lines(HotLines& lines) const noexcept override { lines.add(this, this); }

 private:
  static constexpr std::uint32_t kArmed = 1;
  static constexpr std::uint32_t kListed = 1U << 31;

  void ring_if_armed() {
    const std::uint32_t armed = armed_.load();
    if ((armed & kListed) != 0) {
      if (map_->bits().set(armed & ~kListed, rung_for_)) ring();
    } else if (armed_.exchange(0) != 0) {
      ring();
    }
  }
  void ring() {
    ++rings_;
    ::eventfd_write(doorbell_.get(), 1);
  }

  std::function<void()> armed_look_;
  std::uint32_t unheard_ = 0;
  UniqueFd doorbell_{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  std::vector<UniqueFd> old_doorbells_;
  std::atomic<std::uint32_t> events_{0};
  std::atomic<std::uint32_t> armed_{0};  ///< 0, kArmed, or kListed and a place
  std::shared_ptr<ReadyMap> map_;
  ReadyBits::RungFor rung_for_ = 0;
  std::uint64_t group_ = 0;
  std::atomic<int> rings_{0};
  std::atomic<bool> was_closed_{false};
  std::atomic<std::uint32_t> stamp_{0};
  std::atomic<int> arms_{0};
  std::atomic<int> wakes_{0};
  std::atomic<int> looks_{0};
  std::atomic<Nanos> deadline_{Nanos::max()};
  bool waits_for_our_cpus_ = false;
};

/// A fake behind a descriptor number of its own, in the process's table; removed and closed at the end.
class OpenFake {
 public:
  OpenFake() : fd_(::eventfd(0, EFD_CLOEXEC)), endpoint_(new FakeEndpoint) {
    static_cast<void>(runtime::fd_table().insert(fd_, runtime::Ref::share(*endpoint_)));
  }
  OpenFake(const OpenFake&) = delete;
  OpenFake& operator=(const OpenFake&) = delete;
  ~OpenFake() {
    close();
    endpoint_->drop_ref();
  }
  [[nodiscard]] int fd() const { return fd_; }
  FakeEndpoint* operator->() const { return endpoint_; }
  FakeEndpoint& operator*() const { return *endpoint_; }
  /// As rclose(2) does it.
  void close() {
    if (fd_ < 0) return;
    const runtime::Ref gone = runtime::fd_table().remove(fd_);
    ::close(fd_);
    fd_ = -1;
    if (gone && !gone->has_descriptors()) gone->retire();
  }

 private:
  int fd_;
  FakeEndpoint* endpoint_;
};

}  // namespace ringsock::fakes
