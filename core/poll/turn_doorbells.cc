#include "core/poll/turn_doorbells.h"

#include <new>
#include <utility>

#include "core/base/rare_calls.h"
#include "core/poll/epoll_file.h"
#include "core/poll/epoll_member.h"

namespace ringsock::runtime {

bool TurnDoorbells::make(std::array<int, 2> others) {
  if (cannot_be_made_) return false;
  cannot_be_made_ = true;
  UniqueFd file =
      is_permitted(RareCall::epoll_pwait) ? out_of_the_way(UniqueFd(::epoll_create1(EPOLL_CLOEXEC))) : UniqueFd();
  bool is_whole = static_cast<bool>(file);
  for (const int fd : others) {
    const epoll_event event{EPOLLIN, {.fd = fd}};
    is_whole = is_whole && control_epoll_file(file.get(), EPOLL_CTL_ADD, fd, &event);
  }
  if (!is_whole) return false;
  file_ = std::move(file);
  number_.store(file_.get(), std::memory_order_release);
  return true;
}

bool TurnDoorbells::enter(EpollMember& member, const WaitFds& fds, std::uint64_t serial, std::array<int, 2> others) {
  if (!file_ && !make(others)) return false;
  TurnMember& turn = member.turn;
  const std::array<int, 3> wanted{fds.shared[0], fds.shared[1], fds.sleeps_on_own ? fds.own : -1};
  if (turn.is_in && turn.fds == wanted && turn.serial == serial) return true;
  // A descriptor of another serial is another file under its number.
  const bool is_same = turn.is_in && turn.serial == serial;
  bool are_all_in = true;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (is_same && turn.fds.at(i) == wanted.at(i)) continue;
    remove(std::exchange(turn.fds.at(i), -1), member);
    if (wanted.at(i) < 0 || !are_all_in) continue;
    // What wakes threads of this process only is an epoll file, which cannot be an exclusive member.
    const bool is_shared = i < fds.shared.size();
    are_all_in = add(wanted.at(i), is_shared ? EPOLLEXCLUSIVE : 0U, member);
    if (are_all_in) turn.fds.at(i) = wanted.at(i);
  }
  turn.serial = serial;
  if (!turn.is_in.exchange(true)) count_.fetch_add(1, std::memory_order_relaxed);
  if (!are_all_in) leave(member);
  return are_all_in;
}

void TurnDoorbells::leave(EpollMember& member) {
  TurnMember& turn = member.turn;
  if (!turn.is_in.exchange(false)) return;
  count_.fetch_sub(1, std::memory_order_relaxed);
  for (int& fd : turn.fds) remove(std::exchange(fd, -1), member);
}

void TurnDoorbells::forget() {
  number_.store(-1, std::memory_order_release);
  count_.store(0, std::memory_order_relaxed);
  file_.reset();
  known_.clear();
  cannot_be_made_ = false;
}

/// Fails for a descriptor that another member has entered.
bool TurnDoorbells::add(int fd, std::uint32_t how, EpollMember& member) try {
  const auto [known, is_new] = known_.try_emplace(fd, &member);
  const epoll_event event{EPOLLIN | EPOLLET | how, {.fd = fd}};
  if (!control_epoll_file(file_.get(), EPOLL_CTL_ADD, fd, &event)) {
    if (is_new) known_.erase(known);
    return false;
  }
  known->second = &member;  // the entry of a member whose descriptor was closed may be there
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

void TurnDoorbells::remove(int fd, const EpollMember& member) {
  const auto known = known_.find(fd);
  if (known == known_.end() || known->second != &member) return;
  known_.erase(known);
  static_cast<void>(control_epoll_file(file_.get(), EPOLL_CTL_DEL, fd, nullptr));
}

}  // namespace ringsock::runtime
