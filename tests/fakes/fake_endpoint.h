// An endpoint whose readiness the test sets; its doorbell is an eventfd.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <utility>

#include "core/base/unique_fd.h"
#include "core/runtime/endpoint.h"
#include "core/runtime/fd_table.h"

namespace ringsock::fakes {

/// Behaves as a stream endpoint on the embedded device does: a change rings the doorbell only when somebody has armed
/// it since the last ring. Counts what the runtime does with it.
class FakeEndpoint final : public runtime::Endpoint {
 public:
  // -- what the test does
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
  void wait_for_our_cpus() { waits_for_our_cpus_ = true; }
  /// Runs in each ready() once the endpoint was armed: in the last look before a sleep.
  void on_armed_look(std::function<void()> action) { armed_look_ = std::move(action); }

  // -- what happened
  [[nodiscard]] int arms() const { return arms_; }
  [[nodiscard]] int wakes() const { return wakes_; }
  [[nodiscard]] int looks() const { return looks_; }
  [[nodiscard]] bool was_closed() const { return was_closed_; }
  void forget_counts() { arms_ = wakes_ = looks_ = 0; }

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
    armed_.store(true);
    return {{doorbell_.get(), -1}};
  }
  void woken() noexcept override {
    ++wakes_;
    eventfd_t count = 0;
    ::eventfd_read(doorbell_.get(), &count);
  }
  std::uint32_t arrival_stamp() noexcept override { return stamp_; }
  Nanos deadline() noexcept override { return deadline_; }
  [[nodiscard]] bool waits_for_our_cpus() const noexcept override { return waits_for_our_cpus_; }
  void closed() noexcept override { was_closed_ = true; }

 private:
  void ring_if_armed() {
    if (armed_.exchange(false)) ::eventfd_write(doorbell_.get(), 1);
  }

  std::function<void()> armed_look_;
  UniqueFd doorbell_{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  std::atomic<std::uint32_t> events_{0};
  std::atomic<bool> armed_{false};
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
    if (gone && !gone->has_descriptors()) gone->close();
    ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
  FakeEndpoint* endpoint_;
};

}  // namespace ringsock::fakes
