#include "librsocket/hand_over/door.h"
#include "librsocket/stream_api.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <exception>
#include <new>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/at_fork.h"
#include "core/base/libc_calls.h"
#include "core/base/log.h"
#include "core/base/mutex.h"
#include "core/base/own_duplicate.h"
#include "core/base/own_threads.h"
#include "core/base/raised_limit.h"
#include "core/base/signals_blocked.h"
#include "core/base/sleep_while.h"
#include "core/base/this_thread.h"
#include "core/runtime/fd_table.h"
#include "core/runtime/fork_registry.h"
#include "core/runtime/service_loop.h"
#include "core/runtime/service_thread.h"
#include "core/transports/kernel_calls.h"
#include "librsocket/hand_over/hand_over.h"
#include "librsocket/hand_over/settle_connect.h"

namespace ringsock::rs {

namespace {

using runtime::Ref;

struct Request {
  std::uint64_t key;
  std::uint64_t id;
};

struct Name {
  sockaddr_un address{};
  socklen_t length = 0;
};

Name name_of_door(std::uint64_t door) {
  Name name;
  name.address.sun_family = AF_UNIX;
  // An abstract name: the first byte is 0.
  const int letters = std::snprintf(name.address.sun_path + 1, sizeof name.address.sun_path - 1,
                                    "ringsock-door-%016llx", static_cast<unsigned long long>(door));
  name.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<std::size_t>(letters));
  return name;
}

/// Makes the kernel drop packets to `fd` that do not begin with these bytes: socket(7), SO_ATTACH_FILTER.
bool let_in_only(int fd, std::uint64_t first) {
  std::array<std::uint8_t, sizeof first> bytes;
  std::memcpy(bytes.data(), &first, sizeof first);
  const auto word = [&](std::size_t at) {  // as the filter loads it, in network order
    return std::uint32_t{bytes[at]} << 24 | std::uint32_t{bytes[at + 1]} << 16 | std::uint32_t{bytes[at + 2]} << 8 |
           bytes[at + 3];
  };
  static constexpr std::uint32_t kWhole = 0xffffffff;
  std::array program = {
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, word(0), 0, 3),
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 4), sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, word(4), 0, 1),
      sock_filter BPF_STMT(BPF_RET | BPF_K, kWhole),     sock_filter BPF_STMT(BPF_RET | BPF_K, 0),
  };
  const sock_fprog filter{program.size(), program.data()};
  return ::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter) == 0;
}

/// A message with one part and at most one descriptor.
class Message {
 public:
  Message(void* data, std::size_t length) : piece_{data, length} {
    header_.msg_iov = &piece_;
    header_.msg_iovlen = 1;
    header_.msg_control = control_.data();
    header_.msg_controllen = control_.size();
  }
  void attach(int fd) {
    cmsghdr* const part = CMSG_FIRSTHDR(&header_);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(part), &fd, sizeof fd);
  }
  void to(Name& name) {
    header_.msg_name = &name.address;
    header_.msg_namelen = name.length;
  }
  ssize_t send(int fd) { return ::sendmsg(fd, &header_, MSG_NOSIGNAL | MSG_DONTWAIT); }
  /// A full table takes the descriptor, too: above the limit.
  ssize_t receive(int fd) {
    const RaisedLimit beyond_full_table;
    return ::recvmsg(fd, &header_, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  }
  UniqueFd attached() {
    UniqueFd fd;
    const cmsghdr* const part = CMSG_FIRSTHDR(&header_);
    if (part == nullptr || part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) return fd;
    int number = -1;
    std::memcpy(&number, CMSG_DATA(part), sizeof number);
    return out_of_the_way(UniqueFd(number));
  }

 private:
  iovec piece_;
  msghdr header_{};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control_{};
};

}  // namespace

// -- the door --------------------------------------------------------------------------------------

Result<Door> Door::open() {
  Door door;
  std::array<std::uint64_t, 2> secrets;
  if (::getrandom(secrets.data(), sizeof secrets, GRND_NONBLOCK) != sizeof secrets) return Error::last("getrandom");
  door.name_ = secrets[0];
  door.key_ = secrets[1];
  const RaisedLimit beyond_full_table;
  door.socket_ = out_of_the_way(UniqueFd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
  if (!door.socket_) return Error::last("door: socket");
  // The filter comes before the name, so that no other packet is ever queued.
  if (!let_in_only(door.fd(), door.key_)) return Error::last("door: filter");
  const Name name = name_of_door(door.name_);
  if (::bind(door.fd(), reinterpret_cast<const sockaddr*>(&name.address), name.length) != 0)
    return Error::last("door: bind");
  return door;
}

void Door::announce(FamilyRecord& family) const {
  family.key.store(key_);
  family.door.store(name_);
  family.door_owner.store(own_member());
}

std::optional<Door::Caller> Door::next() {
  Request request{};
  Message message(&request, sizeof request);
  const ssize_t got = message.receive(fd());
  if (got < 0) return std::nullopt;
  Caller caller{request.id, message.attached()};
  if (got != sizeof request) caller.id = 0;
  return caller;
}

Status Door::Caller::send(std::uint64_t proof, int kernel_socket) const {
  Message message(&proof, sizeof proof);
  message.attach(kernel_socket);
  if (message.send(answer.get()) != sizeof proof) return Error::last("door: answer");
  return ok();
}

// -- asking ----------------------------------------------------------------------------------------

namespace {

UniqueFd way_to_doors();

/// The ends at which the answer is received and sent.
Result<std::pair<UniqueFd, UniqueFd>> answer_pair() {
  const RaisedLimit beyond_full_table;
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return Error::last("ask: socketpair");
  return std::pair(out_of_the_way(UniqueFd(ends[0])), out_of_the_way(UniqueFd(ends[1])));
}

/// How often an asker looks whether the process that it has asked still lives.
constexpr Nanos kBetweenLooks = std::chrono::milliseconds(20);

/// How long a process is waited for that is between its calls, so that another one can go on from what it has saved.
constexpr Nanos kPatienceBetweenCalls = std::chrono::milliseconds(250);

/// Returns whether it is useless to wait for a process that is stopped: another one can go on from what it has saved.
bool is_stopped_outside_calls(Member process, const StreamSocket& connection) {
  return connection.inheritance().is_saved() && is_stopped(process);
}

/// Waits for what `process` answers. Errors: ENOENT it has refused, or has ended; ETIMEDOUT, also when it is not worth
/// waiting.
Result<UniqueFd> wait_for_answer(int end, Member process, const StreamSocket& connection, Nanos deadline) {
  const Nanos begin = monotonic_now();
  for (;;) {
    const Nanos left = deadline - monotonic_now();
    if (left <= Nanos::zero()) return Error{ETIMEDOUT, "ask: no answer"};
    pollfd entry{end, POLLIN, 0};
    const auto patience = std::chrono::duration_cast<std::chrono::milliseconds>(std::min(left, kBetweenLooks));
    if (libc_calls.poll(&entry, 1, static_cast<int>(patience.count()) + 1) <= 0) {
      if (!may_live(process)) return Error{ENOENT, "ask: it has ended"};
      if (is_stopped_outside_calls(process, connection)) return Error{ETIMEDOUT, "ask: it is stopped"};
      if (connection.inheritance().is_saved() && monotonic_now() - begin > kPatienceBetweenCalls)
        return Error{ETIMEDOUT, "ask: it is busy"};
      continue;
    }
    std::uint64_t proof = 0;
    Message answer(&proof, sizeof proof);
    if (answer.receive(end) != sizeof proof) return Error{ENOENT, "ask: not there"};
    UniqueFd socket = answer.attached();
    if (!socket) return Error{ENOENT, "ask: no descriptor"};
    return socket;
  }
}

/// Asks `process` at its door. Error ENOENT: it took the question and does not have the connection, or it has ended.
Result<UniqueFd> ask_at(std::uint64_t door, Member process, const StreamSocket& connection, const FamilyRecord& family,
                        Nanos deadline) {
  auto pair = answer_pair();
  if (!pair) return pair.error();
  auto& [ours, theirs] = *pair;
  if (!let_in_only(ours.get(), family.proof)) return Error::last("ask: filter");
  const UniqueFd way = way_to_doors();
  if (!way) return Error::last("ask: socket");
  Name name = name_of_door(door);
  Request request{family.key.load(), family.id};
  Message question(&request, sizeof request);
  question.to(name);
  question.attach(theirs.get());
  if (question.send(way.get()) != sizeof request) return Error::last("ask: sendmsg");
  theirs.reset();
  return wait_for_answer(ours.get(), process, connection, deadline);
}

constexpr Nanos kBetweenQuestions{200'000};
/// The number of refusals after which the asker gives up. A user refuses for a moment while it hands the connection to
/// a new process.
constexpr int kMostRefusals = 500;

}  // namespace

namespace {

/// Asks once. A process that is stopped gets the question, so that it knows once it goes on, and is waited for only in
/// the middle of a call.
Result<UniqueFd> ask_process(Member process, const StreamSocket& connection, const FamilyRecord& family,
                             Nanos deadline) {
  // Another thread of this process may be about to go on with it, or may be handing it on.
  if (process == own_member() || family.door_owner.load() != process)
    return may_live(process) ? Error{EAGAIN, "ask: no door yet"} : Error{ENOENT, "ask: it has ended"};
  const bool is_useless = is_stopped_outside_calls(process, connection);
  return ask_at(family.door.load(), process, connection, family, is_useless ? monotonic_now() : deadline);
}

}  // namespace

Result<UniqueFd> ask_user(const StreamSocket& connection, Nanos deadline) {
  const FamilyRecord* const known = connection.inheritance().family();
  if (known == nullptr) return Error{EALREADY, "ask: closed"};
  const FamilyRecord& family = *known;
  if (family.id == 0 || family.proof == 0) return Error{EIO, "ask: no secrets"};
  for (int refusals = 0; refusals < kMostRefusals;) {
    const Member user = family.user.load();
    if (connection.endpoint().has_left_to_kernel()) return Error{EALREADY, "ask: no need"};
    if (connection.inheritance().is_free()) return Error{EAGAIN, "ask: nobody uses it"};
    const Member asked = user != 0 && user != FamilyRecord::kHandedOver ? user : family.last_user.load();
    auto answer = ask_process(asked, connection, family, deadline);
    if (answer) return answer;
    // It has saved the state, and cannot be asked.
    if (answer.error().code == EAGAIN && connection.inheritance().is_saved()) return answer;
    if (answer.error().code == ENOENT || answer.error().code == ECONNREFUSED) {
      ++refusals;
    } else if (answer.error().code != EAGAIN) {
      return answer.error();
    }
    const bool is_a_process = user != FamilyRecord::kHandedOver && user != 0;
    if (is_a_process && !may_live(user) && user == family.user.load()) {
      // It may have been killed while it was asked, and have left a state that can be continued.
      if (connection.inheritance().is_free()) continue;
      return Error{EIO, "ask: the process that used the connection has ended in the middle of a call"};
    }
    if (monotonic_now() >= deadline) return Error{ETIMEDOUT, "ask: no answer"};
    sleep_for(kBetweenQuestions);
  }
  return Error{EIO, "ask: the process that used the connection has it no more"};
}

namespace {

Mutex& moving();

void before_fork() noexcept {
  if (!this_thread.makes_helper) settle_connects();
  moving().lock();
}

/// Keeps two threads from moving a connection at once. Taken before all locks of go_on_as().
Mutex& moving() {
  static Mutex& mutex = *[] {
    auto* const made = new Mutex;
    at_fork(
        ForkStep::hand_overs, before_fork, [] { moving().unlock(); }, [] { moving().unlock(); });
    return made;
  }();
  return mutex;
}

}  // namespace

void wait_for_moves() { const std::lock_guard guard(moving()); }

void move_to_kernel(StreamSocket& connection, int kernel_socket) {
  const std::lock_guard guard(moving());
  if (connection.endpoint().has_left_to_kernel()) return;
  StreamApi* const api = connection.core().api();
  if (api != nullptr) api->leave_to_kernel();
  connection.numbers().go_on_as(kernel_socket);
  if (api != nullptr) api->has_left_to_kernel();
}

namespace {

/// Copies what this process has set since the fork, which the connection's user does not know where there was no memory
/// for values that they share.
void bring_settings(StreamSocket& connection, int kernel_socket) {
  if (connection.endpoint().values.is_shared()) return;
  for (const int name : {SO_RCVTIMEO, SO_SNDTIMEO}) {
    timeval limit{};
    socklen_t length = sizeof limit;
    const bool is_set =
        connection.get_option(SOL_SOCKET, name, &limit, &length) && (limit.tv_sec != 0 || limit.tv_usec != 0);
    if (is_set) ::setsockopt(kernel_socket, SOL_SOCKET, name, &limit, sizeof limit);
  }
  if (connection.endpoint().is_nonblocking()) transports::set_kernel_nonblocking(kernel_socket, true);
}

}  // namespace

namespace {

/// Moves a connection that nobody uses now to the kernel, because processes that have both used a connection will do so
/// again. Returns false when another process was faster.
Result<bool> take_to_kernel(StreamSocket& connection) {
  if (!connection.inheritance().take()) return false;
  const Ref self = Ref::share(connection.endpoint());
  if (auto moved = hand_over_for_good(std::span(&self, 1)); !moved) return moved.error();
  return true;
}

/// One step of follow(). Returns whether another one may be necessary.
Result<bool> follow_once(StreamSocket& connection, Nanos deadline) {
  auto socket = ask_user(connection, deadline);
  if (socket) {
    bring_settings(connection, socket->get());
    move_to_kernel(connection, socket->get());
    return true;
  }
  if (socket.error().code == EALREADY) return true;
  // The user may be stopped, or have closed its door: what it has saved is enough.
  if (socket.error().code == EAGAIN || connection.inheritance().is_saved()) {
    auto taken = take_to_kernel(connection);
    if (!taken) return taken.error();
    return !*taken;
  }
  return socket.error();
}

}  // namespace

namespace {
/// The time for which a process is asked, anew for each one that becomes the user.
class Patience {
 public:
  explicit Patience(const StreamSocket& connection) : connection_(connection) { static_cast<void>(renew()); }
  [[nodiscard]] Nanos deadline() const { return deadline_; }
  /// Returns whether there is another user than before.
  bool renew() {
    constexpr Nanos kPatience = std::chrono::seconds(5);
    const FamilyRecord* const family = connection_.inheritance().family();
    const std::uint32_t epoch = family != nullptr ? family->epoch.load() : 0;
    if (epoch_ == epoch) return false;
    epoch_ = epoch;
    deadline_ = monotonic_now() + kPatience;
    return true;
  }

 private:
  const StreamSocket& connection_;
  std::optional<std::uint32_t> epoch_;
  Nanos deadline_{0};
};
}  // namespace

Status follow(StreamSocket& connection) {
  Patience patience(connection);
  while (connection.inheritance().can_follow() && connection.inheritance().is_used_elsewhere() &&
         !connection.endpoint().has_left_to_kernel()) {
    const auto goes_on = follow_once(connection, patience.deadline());
    if (!goes_on) {
      if (goes_on.error().code == ETIMEDOUT && patience.renew()) continue;
      connection.inheritance().note_asked_in_vain();
      log_warn("descriptor %d: %s: EIO here", connection.descriptor(), goes_on.error().where);
      return goes_on.error();
    }
    if (!*goes_on) break;
  }
  return ok();
}

bool has_come_back(StreamSocket& connection) {
  const Inheritance& inheritance = connection.inheritance();
  return inheritance.family() != nullptr && !inheritance.is_used_elsewhere() &&
         connection.core().connection->ends().failure() != EIO;
}

// -- this process's door ---------------------------------------------------------------------------

namespace {

/// Threads: any.
class OwnDoor {
 public:
  void announce(FamilyRecord& family) {
    runtime::ServiceThread::Id lost = 0;
    {
      const std::lock_guard guard(lock_);
      if (door_ && !is_ours()) lost = lose();
      const Status there = watch_ != 0 ? ok() : open();
      if (there) {
        door_->announce(family);
      } else {
        log_info("connections that several processes use: nobody can ask for them: %s", there.error().where);
      }
    }
    runtime::service_thread().unwatch(lost);
  }

  /// Returns a socket to send questions from, in the network namespace where the doors have their names.
  UniqueFd way_out() {
    const std::lock_guard guard(lock_);
    const RaisedLimit beyond_full_table;
    if (door_ && is_ours()) return own_duplicate(door_->fd());
    return out_of_the_way(UniqueFd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)));
  }
  /// Gives the door, or a new one, to a process that serves it itself. Errors: those of Door::open().
  Result<Door> give_away() {
    const std::lock_guard guard(lock_);
    if (!door_ || !is_ours()) return Door::open();
    Door door = *std::move(door_);
    door_.reset();
    return door;
  }
  [[nodiscard]] int number() const { return door_ ? door_->fd() : -1; }

  /// finish_answers()
  void finish() noexcept {
    constexpr Nanos kPatience = std::chrono::seconds(5);
    if (!serves_.load()) return;
    ending_.store(::getpid());
    sleep_while([this] { return answering_.load() != 0; }, kPatience, kBetweenQuestions);
  }

  void answer_again() noexcept {
    ending_.store(0);
    const std::lock_guard guard(lock_);
    if (!std::exchange(is_paused_, false) || watch_ == 0) return;
    if (Status resumed = runtime::service_thread().resume(watch_); !resumed)
      log_info("connections that several processes use: nobody can ask for them: %s", resumed.error().where);
  }

  /// Makes the child's door: the child may live in another network namespace, or be forbidden to open sockets.
  void before_fork() noexcept {
    lock_.lock();
    for (const Ref& endpoint : runtime::fork_registry().copied()) {
      auto* const connection = find_stream(*endpoint);
      if (connection == nullptr || connection->inheritance().family() == nullptr || !connection->is_connected())
        continue;
      if (auto door = Door::open()) childs_ = *std::move(door);
      return;
    }
  }
  void after_fork_in_parent() noexcept {
    childs_.reset();
    lock_.unlock();
  }
  void after_fork_in_child() noexcept {
    watch_ = 0;
    is_paused_ = false;
    serves_.store(false);
    answering_.store(0);
    // The copy of the parent's door would keep questions that nobody answers.
    if (door_ && is_ours()) door_.reset();
    if (door_) forget();
    if (childs_) adopt(*std::exchange(childs_, std::nullopt));
    lock_.unlock();
  }

 private:
  /// Returns whether the number is still the door's: the application may have closed it, and opened another file.
  [[nodiscard]] bool is_ours() const {
    const auto file = runtime::FileIdentity::of(door_->fd());
    return file && *file == file_;
  }

  runtime::ServiceThread::Id lose() {
    forget();
    return std::exchange(watch_, 0);
  }
  /// Drops the door without closing its number, which is another file's.
  void forget() {
    door_->disown();
    door_.reset();
  }

  Status open() {
    if (!door_) {
      auto door = Door::open();
      if (!door) return door.error();
      adopt(*std::move(door));
      if (!door_) return Error{EBADF, "door"};
    }
    auto watch = runtime::service_thread().watch(door_->fd(), EPOLLIN, [this](std::uint32_t) { serve(); });
    if (!watch) return watch.error();
    watch_ = *watch;
    serves_.store(true);
    return ok();
  }

  void adopt(Door door) noexcept {
    const auto file = runtime::FileIdentity::of(door.fd());
    if (!file) return;
    door_ = std::move(door);
    file_ = *file;
  }

  /// Takes the questions, on the service thread, which has other duties. An answer may take a while, so a new thread
  /// gives it. A process that ended in the middle of an answer would leave the connection to nobody.
  void serve() {
    answering_.fetch_add(1);
    const bool is_ending = ending_.load() == ::getpid();
    if (is_ending || !begin_answers()) answering_.fetch_sub(1);
    if (!is_ending) return;
    // The questions wait for the end of the process, or for answer_again().
    const std::lock_guard guard(lock_);
    if (watch_ == 0 || ending_.load() != ::getpid()) return;  // answer_again() may have been called meanwhile
    is_paused_ = true;
    runtime::service_thread().pause(watch_);
  }

  /// Returns whether a thread answers.
  bool begin_answers() {
    std::vector<Door::Caller> callers;
    {
      const std::lock_guard guard(lock_);
      while (door_) {
        auto caller = door_->next();
        if (!caller) break;
        callers.push_back(*std::move(caller));
      }
    }
    if (callers.empty()) return false;
    try {
      const SignalsBlocked blocked;
      std::thread([this, callers = std::move(callers)]() mutable {
        const OwnThread own;
        for (Door::Caller& caller : callers) answer_or_not(caller);
        answering_.fetch_sub(1);
      }).detach();
    } catch (const std::exception&) {
      return false;  // without a thread or memory the callers get no answer, and ask again
    }
    return true;
  }

  static void answer_or_not(Door::Caller& caller) noexcept {
    try {
      answer(caller);
    } catch (const std::exception& failure) {
      log_warn("a connection that another process wants, too, stays here: %s", failure.what());
    }
  }

  static void answer(Door::Caller& caller) {
    for (const Ref& endpoint : runtime::fork_registry().endpoints()) {
      auto* const connection = ring_connection(*endpoint);
      const FamilyRecord* const family = connection != nullptr ? connection->inheritance().family() : nullptr;
      if (family == nullptr || family->id != caller.id) continue;
      if (connection->inheritance().is_used_elsewhere()) {
        // The caller has not waited for this process, or asks the new user. Threads that sleep here go on there, too.
        caller.answer.reset();
        static_cast<void>(follow(*connection));
      } else {
        hand_over_to(caller, endpoint, family->proof);
      }
      return;
    }
  }

  static void hand_over_to(const Door::Caller& caller, const Ref& connection, std::uint64_t proof) {
    const auto sockets = hand_over_for_good(std::span(&connection, 1));
    if (!sockets && sockets.error().code == ENOTCONN) {
      log_info("a connection that another process wants, too, has been closed meanwhile: that process takes it");
    } else if (!sockets) {
      log_warn("a connection that another process wants, too, cannot become the kernel's: %s", sockets.error().where);
    } else if (caller.answer && !sockets->empty()) {
      static_cast<void>(caller.send(proof, sockets->front().get()));
    }
  }

  Mutex lock_;
  std::optional<Door> door_;
  runtime::FileIdentity file_;  ///< the file that its number meant
  std::optional<Door> childs_;  ///< the door of a child that is being forked
  runtime::ServiceThread::Id watch_ = 0;
  std::atomic<bool> serves_{false};  ///< questions may come, or may have come
  std::atomic<int> answering_{0};    ///< threads that answer, or are about to
  bool is_paused_ = false;           ///< the watch, because the process ends
  std::atomic<pid_t> ending_{0};     ///< a process; it may be a child that shares this memory (vfork(2))
};

/// Never destroyed.
OwnDoor& own_door() {
  static OwnDoor& door = *[] {
    auto* const made = new OwnDoor;
    at_fork(
        ForkStep::door, [] { own_door().before_fork(); }, [] { own_door().after_fork_in_parent(); },
        [] { own_door().after_fork_in_child(); });
    return made;
  }();
  return door;
}

}  // namespace

namespace {
UniqueFd way_to_doors() { return own_door().way_out(); }
}  // namespace

Result<Door> take_own_door() { return own_door().give_away(); }
int own_door_number() { return own_door().number(); }

void announce_door(StreamSocket& connection) noexcept {
  try {
    if (FamilyRecord* const family = connection.inheritance().family()) own_door().announce(*family);
  } catch (const std::bad_alloc&) {
    log_info("connections that several processes use: nobody can ask for them: no memory");
  }
}

void finish_answers() noexcept { own_door().finish(); }
void answer_again() noexcept { own_door().answer_again(); }

void let_others_ask() {
  moving();
  own_door();
  Inheritance::have_user_asked(announce_door);
}

}  // namespace ringsock::rs
