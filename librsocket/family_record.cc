#include "librsocket/family_record.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <new>
#include <string_view>
#include <utility>

#include "core/base/at_fork.h"
#include "core/base/clock.h"
#include "core/base/process_state.h"
#include "core/base/rare_calls.h"
#include "core/base/unique_fd.h"
#include "core/runtime/fork_registry.h"
#include "core/runtime/shared_page.h"

namespace ringsock::rs {

// -- who is there

namespace {

/// Of proc_pid_stat(5).
struct ProcessState {
  char letter = 0;  ///< 0: it cannot be read. There is no process, no descriptor, no /proc, or it is not for us.
  int threads = 0;
};
ProcessState state_of(pid_t process) {
  std::array<char, 32> path;
  std::snprintf(path.data(), path.size(), "/proc/%d/stat", static_cast<int>(process));
  const UniqueFd file(::open(path.data(), O_RDONLY | O_CLOEXEC));
  if (!file) return {};
  std::array<char, 512> text;
  const ssize_t length = ::read(file.get(), text.data(), text.size());
  // "number (name) state ..."; a name may contain anything.
  std::string_view rest(text.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
  const auto name_end = rest.rfind(") ");
  if (name_end == std::string_view::npos || name_end + 2 >= rest.size()) return {};
  rest.remove_prefix(name_end + 2);
  ProcessState out{rest.front(), 0};
  constexpr int kFieldsToThreads = 17;  // from (3) state to (20) num_threads
  for (int field = 0; field < kFieldsToThreads; ++field)
    rest.remove_prefix(std::min(rest.find(' '), rest.size() - 1) + 1);
  std::from_chars(rest.data(), rest.data() + rest.size(), out.threads);
  return out;
}

}  // namespace

bool is_alive(pid_t process) noexcept {
  if (::kill(process, 0) != 0 && errno == ESRCH) return false;
  const ProcessState state = state_of(process);
  if (state.letter == 0) return ::kill(process, 0) == 0 || errno != ESRCH;
  // The state is that of the first thread, which may end before the others do (pthread_exit(3)).
  return state.letter != 'Z' || state.threads > 1;
}

namespace {

/// Tells the PID namespaces of a family of processes apart. It is another one in a process whose parent is in another
/// namespace, and the parent's otherwise.
struct NamespaceMark {
  static constexpr ProcessPart kPart = ProcessPart::pid_namespace_mark;
  std::atomic<std::uint32_t> value{0};
  std::atomic<unsigned> found_at{0};  ///< fork_generation()
};
[[gnu::constructor]] void start() { process_state<NamespaceMark>(); }

/// Called first when the process has just been forked: a process whose parent has ended gets one that it sees.
std::uint32_t namespace_mark() noexcept {
  NamespaceMark& mark = process_state<NamespaceMark>();
  if (mark.found_at.load(std::memory_order_relaxed) == fork_generation()) return mark.value.load();
  if (is_permitted(RareCall::getppid) && ::getppid() == 0) {
    constexpr std::uint32_t kSpread = 2'654'435'761U;
    const auto now = static_cast<std::uint32_t>(monotonic_now().count());
    mark.value.store(((mark.value.load() + now) * kSpread | 1) & INT32_MAX);
  }
  mark.found_at.store(fork_generation(), std::memory_order_relaxed);
  return mark.value.load();
}

pid_t number_of(Member member) { return static_cast<pid_t>(member & INT32_MAX); }
bool is_in_our_namespace(Member member) {
  return member > 0 && static_cast<std::uint32_t>(member >> 32) == namespace_mark();
}

}  // namespace

Member member_of_this(pid_t number) noexcept { return Member{namespace_mark()} << 32 | number; }

bool may_live(Member member) noexcept { return !is_in_our_namespace(member) || is_alive(number_of(member)); }

bool is_stopped(Member member) noexcept {
  if (!is_in_our_namespace(member)) return false;
  const char state = state_of(number_of(member)).letter;
  return state == 'T' || state == 't';
}

void FamilyRecord::enter() noexcept {
  for (auto& member : members_) {
    Member nobody = 0;
    if (member.compare_exchange_strong(nobody, own_member())) return;
  }
  // Those that were killed have not left.
  for (auto& member : members_) {
    Member there = member.load();
    if (may_live(there) || !member.compare_exchange_strong(there, own_member())) continue;
    holders.fetch_sub(1);
    return;
  }
  has_more_members_.store(true);
}

void FamilyRecord::leave() noexcept {
  Member us = own_member();
  last_user.compare_exchange_strong(us, 0);
  for (auto& member : members_) {
    Member me = own_member();
    if (member.compare_exchange_strong(me, 0)) return;
  }
}

bool FamilyRecord::others_live(bool newborn) const noexcept {
  const std::int32_t all = holders.load();
  if (all <= 1) return false;
  if (has_more_members_.load()) return true;
  std::int32_t entered = 0;
  for (const auto& member : members_) {
    const Member process = member.load();
    if (process == 0) continue;
    if (process != own_member() && (newborn || is_in_our_namespace(process)) && may_live(process)) return true;
    ++entered;
  }
  return newborn && all > entered;
}

std::shared_ptr<FamilyRecord> make_family_record() noexcept {
  std::shared_ptr<void> piece = runtime::shared_piece(sizeof(FamilyRecord));
  if (piece == nullptr) return nullptr;
  auto* const record = new (piece.get()) FamilyRecord;
  // Without random secrets no process is asked.
  std::array<std::uint64_t, 2> secrets;
  if (::getrandom(secrets.data(), sizeof secrets, GRND_NONBLOCK) == sizeof secrets) {
    record->id = secrets[0];
    record->proof = secrets[1];
  }
  record->founder = own_member();
  record->enter();
  return {std::move(piece), record};
}

void leave_families() noexcept {
  runtime::fork_registry().try_for_each([](runtime::Endpoint& endpoint) { endpoint.process_ends(); });
}

void rejoin_families() noexcept {
  runtime::fork_registry().try_for_each([](runtime::Endpoint& endpoint) { endpoint.process_goes_on(); });
}

namespace {
[[gnu::destructor]] void leave_families_at_exit() { leave_families(); }
}  // namespace

}  // namespace ringsock::rs
