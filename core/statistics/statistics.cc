#include "core/statistics/statistics.h"
#include "core/base/log.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <mutex>

#include "core/base/at_fork.h"
#include "core/base/rare_calls.h"
#include "core/statistics/page_parts.h"
#include "core/statistics/statistics_file.h"

namespace ringsock::runtime {

namespace {

/// Slots are given memory in steps of this size, 16 KiB.
constexpr std::uint32_t kSlotsPerStep = 64;

constexpr std::uint32_t rounded_up(std::uint32_t slots) {
  return std::max(kSlotsPerStep, (slots + kSlotsPerStep - 1) / kSlotsPerStep * kSlotsPerStep);
}
constexpr std::size_t bytes_with(std::uint32_t slots) { return kPageHeaderBytes + slots * sizeof(SocketSlot); }

PageHeader* map_private() { return static_cast<PageHeader*>(map_private_statistics(kStatisticsBytes)); }

SocketSlot* slots_of(PageHeader& header) {
  return reinterpret_cast<SocketSlot*>(reinterpret_cast<std::byte*>(&header) + kPageHeaderBytes);
}

/// Visits all counters of two sockets in pairs.
template <class Visit>
void for_each_pair(SlotCounters& a, const SlotCounters& b, Visit visit) {
  visit(a.bytes_out, b.bytes_out);
  visit(a.messages_out, b.messages_out);
  visit(a.bytes_in, b.bytes_in);
  visit(a.messages_in, b.messages_in);
  visit(a.wakeups, b.wakeups);
  visit(a.spins_paid, b.spins_paid);
  visit(a.errors, b.errors);
}

void write_identity(SlotIdentity& identity, const SocketDescription& description) {
  change_identity(identity, [&](SlotIdentity& one) {
    one.descriptor = description.descriptor;
    one.state = description.state;
    one.path = description.path;
    one.local = slot_address(description.local);
    one.peer = slot_address(description.peer);
  });
}

void copy_identity(SlotIdentity& to, const SlotIdentity& from) {
  to.descriptor = from.descriptor;
  to.state = from.state;
  to.path = from.path;
  to.local = from.local;
  to.peer = from.peer;
}

std::uint64_t sum(const std::array<Counter, kSocketPaths>& counters) {
  std::uint64_t total = 0;
  for (const Counter& counter : counters) total += counter.load(std::memory_order_relaxed);
  return total;
}

std::uint64_t at(const std::array<Counter, kSocketPaths>& counters, SocketPath path) {
  return counters[static_cast<std::size_t>(path)].load(std::memory_order_relaxed);
}

std::string kernel_part(const PageHeader& header) {
  std::string parts;
  const auto add = [&](std::uint64_t count, const char* word) {
    if (count != 0) parts += (parts.empty() ? " (" : ", ") + std::to_string(count) + " " + word;
  };
  for (std::size_t i = 0; i < kKernelReasons; ++i)
    add(header.kernel[i].load(std::memory_order_relaxed), to_string(static_cast<KernelReason>(i)));
  add(at(header.accepted, SocketPath::kernel), "accepted");
  return parts.empty() ? parts : parts + ")";
}

std::string text_of(const PageHeader& header, const CounterSums& sums) {
  const auto both = [&](SocketPath path) { return at(header.connected, path) + at(header.accepted, path); };
  const std::uint64_t embedded = both(SocketPath::embedded), rdma = both(SocketPath::rdma);
  const std::uint64_t accepted = at(header.accepted, SocketPath::embedded) + at(header.accepted, SocketPath::rdma);
  const auto number = [](std::uint64_t value) { return std::to_string(value); };
  return "ringsock[" + number(header.pid) + " " + header.program.data() + "]: " + number(embedded + rdma) +
         " connections by ring (" + number(embedded) + " embedded, " + number(rdma) + " rdma, " + number(accepted) +
         " accepted), " + number(both(SocketPath::kernel)) + " by kernel TCP" + kernel_part(header) + ", " +
         number(sums.messages_in) + " messages " + number(sums.bytes_in) + " bytes in, " + number(sums.messages_out) +
         " messages " + number(sums.bytes_out) + " bytes out, " + number(sums.wakeups) + " wake-ups, " +
         number(sums.spins_paid) + " spins paid, " + number(sums.errors) + " errors";
}

}  // namespace

constinit ProcessStatistics process_statistics;

namespace {
[[gnu::constructor]] void prepare_statistics() {
  process_statistics.name_program(::program_invocation_short_name);
  at_fork(
      ForkStep::statistics, [] { process_statistics.before_fork(); }, [] { process_statistics.after_fork_in_parent(); },
      [] { process_statistics.after_fork_in_child(); });
}
[[gnu::destructor]] void finish_statistics() { process_statistics.at_exit(); }
}  // namespace

const char* to_string(SocketPath path) {
  switch (path) {
    case SocketPath::none: return "-";
    case SocketPath::embedded: return "embedded";
    case SocketPath::rdma: return "rdma";
    case SocketPath::kernel: return "kernel";
  }
  return "?";
}

const char* to_string(SocketState state) {
  switch (state) {
    case SocketState::unused: return "unused";
    case SocketState::created: return "created";
    case SocketState::bound: return "bound";
    case SocketState::listening: return "listening";
    case SocketState::connecting: return "connecting";
    case SocketState::connected: return "connected";
    case SocketState::failed: return "failed";
    case SocketState::closed: return "closed";
  }
  return "?";
}

const char* to_string(KernelReason reason) {
  switch (reason) {
    case KernelReason::nobody_listened: return "nobody listened";
    case KernelReason::rule: return "by rule";
    case KernelReason::other_user: return "other user";
    case KernelReason::no_device: return "no device";
    case KernelReason::full: return "full";
    case KernelReason::fork: return "fork";
    case KernelReason::handed_over: return "handed over";
    case KernelReason::filter: return "seccomp";
    case KernelReason::no_answer: return "no answer";
    case KernelReason::short_lived: return "short-lived";
    case KernelReason::other: return "other";
  }
  return "?";
}

CounterSums SocketStatistics::sums() const {
  CounterSums out;
  out.add(slot_->counters);
  return out;
}

void CounterSums::add(const SlotCounters& counters) {
  bytes_out += counters.bytes_out.load(std::memory_order_relaxed);
  messages_out += counters.messages_out.load(std::memory_order_relaxed);
  bytes_in += counters.bytes_in.load(std::memory_order_relaxed);
  messages_in += counters.messages_in.load(std::memory_order_relaxed);
  wakeups += counters.wakeups.load(std::memory_order_relaxed);
  spins_paid += counters.spins_paid.load(std::memory_order_relaxed);
  errors += counters.errors.load(std::memory_order_relaxed);
}

// -- sockets

SocketStatistics::SocketStatistics() : slot_(process_statistics.open_slot()) {}
SocketStatistics::~SocketStatistics() { process_statistics.close_slot(*slot_); }
void SocketStatistics::describe(const SocketDescription& description) {
  process_statistics.describe(*slot_, description);
}

SocketSlot* ProcessStatistics::open_slot() {
  const std::lock_guard guard(lock_);
  PageHeader& header = header_locked();
  if (forked_.load(std::memory_order_relaxed)) show_locked();
  opened_ = true;
  std::uint32_t index = first_free_;
  if (index != 0) {
    first_free_ = next_free_[index - 1];
  } else {
    index = header_used_ + 1;
    if (index > slots_ready_ && !grow_locked()) return &header.others;
    header_used_ = index;
    header.slots_used.store(index, std::memory_order_release);
  }
  SocketSlot& slot = slots_of(header)[index - 1];
  for_each_pair(slot.counters, slot.counters, [](Counter& counter, const Counter&) { counter.store(0); });
  write_identity(slot.identity, {});
  return &slot;
}

void ProcessStatistics::close_slot(SocketSlot& slot) {
  const std::lock_guard guard(lock_);
  PageHeader& header = *header_.load(std::memory_order_relaxed);
  if (&slot == &header.others) return;
  for_each_pair(header.gone, slot.counters, [](Counter& gone, const Counter& counter) {
    add_relaxed(gone, counter.load(std::memory_order_relaxed));
  });
  write_identity(slot.identity, {.state = SocketState::unused});
  const auto index = static_cast<std::uint32_t>(&slot - slots_of(header));
  next_free_[index] = first_free_;
  first_free_ = index + 1;
}

void ProcessStatistics::describe(SocketSlot& slot, const SocketDescription& description) {
  const std::lock_guard guard(lock_);
  if (&slot != &header_.load(std::memory_order_relaxed)->others) write_identity(slot.identity, description);
}

// -- totals

PageHeader& ProcessStatistics::header() {
  if (PageHeader* header = header_.load(std::memory_order_acquire)) return *header;
  const std::lock_guard guard(lock_);
  return header_locked();
}

void ProcessStatistics::count_connected(SocketPath path) {
  header().connected[static_cast<std::size_t>(path)].fetch_add(1, std::memory_order_relaxed);
}

void ProcessStatistics::count_kernel_connected(KernelReason reason) {
  count_connected(SocketPath::kernel);
  header().kernel[static_cast<std::size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
}

void ProcessStatistics::count_accepted(SocketPath path) {
  header().accepted[static_cast<std::size_t>(path)].fetch_add(1, std::memory_order_relaxed);
}

std::string ProcessStatistics::line() {
  const std::lock_guard guard(lock_);
  return line_locked();
}

std::string ProcessStatistics::line_locked() {
  PageHeader* header = header_.load(std::memory_order_relaxed);
  if (header == nullptr) return {};
  CounterSums sums;
  sums.add(header->gone);
  sums.add(header->others.counters);
  for (std::uint32_t i = 0; i < header_used_; ++i) {
    const SocketSlot& slot = slots_of(*header)[i];
    if (slot.identity.state != SocketState::unused) sums.add(slot.counters);
  }
  const bool was_used =
      opened_ || sum(header->connected) + sum(header->accepted) + sums.messages_in + sums.messages_out != 0;
  return was_used ? text_of(*header, sums) : std::string();
}

std::string ProcessStatistics::path() {
  const std::lock_guard guard(lock_);
  return path_.data();
}

// -- the page's memory

void ProcessStatistics::fill_header(PageHeader& header) const {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  header.magic = kStatisticsMagic;
  header.version = kStatisticsVersion;
  header.slot_bytes = sizeof(SocketSlot);
  header.pid = static_cast<std::uint32_t>(::getpid());
  header.started_ns = now.tv_sec * std::int64_t{1'000'000'000} + now.tv_nsec;
  header.program = program_;
  header.slots_used.store(header_used_, std::memory_order_relaxed);
}

void ProcessStatistics::name_program(const char* name) { std::snprintf(program_.data(), program_.size(), "%s", name); }

PageHeader& ProcessStatistics::header_locked() {
  if (PageHeader* header = header_.load(std::memory_order_relaxed)) return *header;
  PageHeader* header = map_private();
  if (header != nullptr) {
    slots_ready_ = kSlotsPerStep;
  } else {
    header = &spare_;
  }
  fill_header(*header);
  header_.store(header, std::memory_order_release);
  show_refusals_in(header->refused);
  show_locked();
  return *header;
}

bool ProcessStatistics::grow_locked() {
  if (slots_ready_ == 0 || slots_ready_ + kSlotsPerStep > kStatisticsSlots) return false;
  if (path_[0] != '\0' && !reserve_statistics(header_.load(std::memory_order_relaxed), bytes_with(slots_ready_),
                                              bytes_with(slots_ready_ + kSlotsPerStep)))
    return false;
  slots_ready_ += kSlotsPerStep;
  return true;
}

void ProcessStatistics::show() {
  const std::lock_guard guard(lock_);
  if (forked_.load(std::memory_order_relaxed)) show_locked();
}

void ProcessStatistics::show_locked() {
  forked_.store(false, std::memory_order_relaxed);
  if (slots_ready_ == 0 || !is_statistics_file_permitted()) return;
  const int saved_errno = errno;
  if (auto file = create_statistics_file(kStatisticsBytes)) {
    if (map_file_locked(file->fd.get())) {
      path_ = file->path;
      remove_stale_statistics(path_.data());
    } else {
      ::unlink(file->path.data());
    }
  }
  errno = saved_errno;
}

/// Maps the file in place of the private memory, with the same contents.
bool ProcessStatistics::map_file_locked(int fd) {
  PageHeader* const header = header_.load(std::memory_order_relaxed);
  const std::uint32_t ready = rounded_up(header_used_);
  if (!show_statistics(header, kStatisticsBytes, bytes_with(header_used_), bytes_with(ready), fd)) return false;
  slots_ready_ = ready;
  return true;
}

// -- fork and exit

void ProcessStatistics::after_fork_in_child() {
  if (PageHeader* header = header_.load(std::memory_order_relaxed)) {
    path_ = {};
    opened_ = false;
    forked_.store(true, std::memory_order_relaxed);
    leave_parents_page(*header);
  }
  lock_.unlock();
}

/// Maps fresh memory at the same addresses, with the same sockets and counters of zero.
void ProcessStatistics::leave_parents_page(PageHeader& header) {
  if (slots_ready_ == 0) return;
  PageHeader* fresh = map_private();
  if (fresh == nullptr) return;
  fill_header(*fresh);
  for (std::uint32_t i = 0; i < header_used_; ++i)
    copy_identity(slots_of(*fresh)[i].identity, slots_of(header)[i].identity);
  replace_statistics(&header, kStatisticsBytes, fresh, bytes_with(header_used_));
}

void ProcessStatistics::remove_file() noexcept {
  const std::lock_guard guard(lock_);
  if (path_[0] != '\0') ::unlink(path_.data());
  path_ = {};
}

void ProcessStatistics::at_exit() noexcept {
  const std::unique_lock guard(lock_, std::try_to_lock);
  PageHeader* header = header_.load(std::memory_order_relaxed);
  // Does nothing when a signal handler exits while the lock is held, or in a child that shares its parent's memory.
  if (!guard || header == nullptr || !is_permitted(RareCall::getpid) ||
      header->pid != static_cast<std::uint32_t>(::getpid()))
    return;
  if (print_at_exit_.load(std::memory_order_relaxed)) {
    if (std::string line = line_locked(); !line.empty()) {
      line += '\n';
      write_to_stderr(line);
    }
  }
  if (path_[0] != '\0' && is_permitted(RareCall::unlink)) ::unlink(path_.data());
  path_ = {};
}

}  // namespace ringsock::runtime
