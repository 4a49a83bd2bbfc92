// Descriptors of endpoints that are sent to other processes or given to posix_spawn(3).
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <set>

#include "core/base/log.h"
#include "core/base/raised_limit.h"
#include "core/base/user_memory.h"
#include "preload/checked_transfer.h"
#include "preload/pass_descriptors.h"
#include "preload/route.h"

namespace ringsock::preload {

namespace {

/// Calls `visit(int fd)` for each descriptor in the control data.
template <class Visit>
void for_each_descriptor(const msghdr& message, Visit visit) {
  const auto* const begin = static_cast<const std::byte*>(message.msg_control);
  auto copy = message;  // CMSG_NXTHDR wants one that may be changed
  for (cmsghdr* header = CMSG_FIRSTHDR(&copy); header != nullptr; header = CMSG_NXTHDR(&copy, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    if (header->cmsg_len < CMSG_LEN(0)) return;
    const std::size_t left =
        message.msg_controllen - static_cast<std::size_t>(reinterpret_cast<const std::byte*>(header) - begin);
    const std::size_t count = (std::min<std::size_t>(header->cmsg_len, left) - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      visit(fd);
    }
  }
}

/// Returns a connection on a ring, which must be handed over. Returns nothing for a descriptor that is passed as it is.
/// Leaves a listener to the kernel: the receiver gets the kernel's listener, so clients must use that one.
runtime::Ref prepare_to_pass(int fd) {
  runtime::Ref endpoint = fd_table().get_settled(fd);
  if (!endpoint) return endpoint;
  endpoint->passed_on();
  if (hand_overs().is_connection(*endpoint)) return endpoint;
  auto* const chosen = endpoint->as_chosen_socket();
  if (chosen != nullptr && chosen->choice().is_on_no_way_yet()) hand_overs().give_to_kernel(*chosen);
  // The receiver waits for the end of the connect.
  if (chosen != nullptr && chosen->is_connecting_by_way()) hand_overs().become_kernels(endpoint);
  return {};
}

/// Returns the errno of sendmsg(2) when a connection cannot be passed on.
int error_of_passing(const Error& why) {
  const bool is_shortage = why.code == EMFILE || why.code == ENFILE || why.code == ENOMEM;
  return is_shortage ? why.code : EOPNOTSUPP;
}

/// Makes these connections the kernel's, each of which may be there more than once, in all processes that have them.
Status make_kernels(std::vector<runtime::Ref> connections) {
  std::sort(connections.begin(), connections.end(), [](const auto& a, const auto& b) { return a.get() < b.get(); });
  const auto same = [](const auto& a, const auto& b) { return a.get() == b.get(); };
  connections.erase(std::unique(connections.begin(), connections.end(), same), connections.end());
  if (connections.empty()) return ok();
  const auto done = hand_overs().hand_over_for_good(connections);
  return done ? ok() : Status(done.error());
}

/// Makes the connections that the message passes on the kernel's. Errors: those of error_of_passing().
Status prepare_to_pass(const msghdr& message) {
  const LibraryCall no_handlers;
  std::vector<runtime::Ref> connections;
  for_each_descriptor(message, [&](int passed) {
    if (runtime::Ref connection = prepare_to_pass(passed)) connections.push_back(std::move(connection));
  });
  const Status done = make_kernels(std::move(connections));
  if (done) return ok();
  log_warn("sendmsg: a connection cannot be passed on: %s", done.error().where);
  return Error{error_of_passing(done.error()), done.error().where};
}

}  // namespace

/// The receiver may not know rings, and the sender may keep the connection: both have a kernel socket afterwards.
ssize_t send_with_control(int fd, const msghdr& message, int flags) {
  const bool is_there = message.msg_control != nullptr && is_readable(message.msg_control, message.msg_controllen);
  if (is_there) {
    if (Status prepared = prepare_to_pass(message); !prepared) {
      errno = prepared.error().code;
      return -1;
    }
  }
  return real.sendmsg(fd, &message, flags);
}

int send_many_with_control(int fd, mmsghdr* messages, unsigned count, int flags) {
  unsigned done = 0;
  for (; done < std::min<unsigned>(count, IOV_MAX); ++done) {
    const ssize_t sent = send_with_control(fd, messages[done].msg_hdr, flags);
    if (sent < 0) return done > 0 ? static_cast<int>(done) : -1;
    messages[done].msg_len = static_cast<unsigned>(sent);
    if (!is_all(messages[done].msg_hdr, sent)) return static_cast<int>(done + 1);
  }
  return static_cast<int>(done);
}

namespace {

/// Returns the errno of posix_spawn(3) when a connection that the file actions name cannot be passed on.
int error_of_spawning(const Error& why) {
  const int error = error_of_passing(why);
  return error == EOPNOTSUPP ? EIO : error;
}

using transports::Inherited;

/// Returns what the program inherits, of the numbers for which `is_kept` returns true.
std::vector<Inherited> inherited_connections(const std::function<bool(int fd)>& is_kept) {
  std::vector<Inherited> inherited = hand_overs().inherited_by_spawned();
  if (inherited.empty()) return inherited;
  // dup2(2) refuses numbers above the limit.
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = RLIM_INFINITY;
  std::erase_if(inherited, [&](const Inherited& one) {
    return static_cast<rlim_t>(one.fd) >= limit.rlim_cur || !is_kept(one.fd);
  });
  return inherited;
}

/// Makes kernel sockets for the connections that the file actions duplicate, under all their numbers. One that another
/// process uses becomes the kernel's in this process, too, and needs no replacement then. Errors: those of hand_over()
/// and hand_over_for_good().
Status replace_duplicated(ForProgram& out, const std::vector<int>& numbers,
                          const std::function<bool(int fd)>& is_kept) {
  for (bool is_last_try = false;; is_last_try = true) {
    std::vector<transports::HandOver> wanted;
    std::vector<runtime::Ref> endpoints;
    out.numbers.clear();
    const auto add = [&](int fd, bool is_inherited) {
      wanted.push_back({fd, true});
      out.numbers.push_back({fd, is_inherited});
    };
    for (const int fd : numbers) {
      runtime::Ref connection = prepare_to_pass(fd);
      if (!connection) continue;
      add(fd, false);
      endpoints.push_back(std::move(connection));
    }
    if (wanted.empty()) return ok();
    for (const Inherited& one : inherited_connections(is_kept)) {
      const auto named = std::find_if(out.numbers.begin(), out.numbers.end(),
                                      [&](const ForProgram::Number& number) { return number.fd == one.fd; });
      if (named != out.numbers.end()) {
        named->is_inherited = true;
      } else if (std::any_of(endpoints.begin(), endpoints.end(),
                             [&](const runtime::Ref& named) { return named.get() == one.endpoint.get(); })) {
        add(one.fd, true);
      }
    }
    auto sockets = hand_overs().hand_over(wanted);
    if (sockets) {
      out.sockets = *std::move(sockets);
      return ok();
    }
    if (is_last_try || error_of_passing(sockets.error()) != EOPNOTSUPP) return sockets.error();
    if (Status done = make_kernels(std::move(endpoints)); !done) return done.error();
  }
}

/// Returns whether there are so many connections that they look like leaks.
bool are_leaks(const std::vector<Inherited>& connections) {
  std::set<const runtime::Endpoint*> different;
  for (const Inherited& one : connections) different.insert(one.endpoint.get());
  return different.size() > transports::kMostLeaks;
}

/// Makes kernel sockets for connections that the program merely inherits. Their relay waits until the program uses
/// them. Errors: those of pipe(2) and hand_over(); ENOTCONN: another thread has closed one.
Status replace_inherited(ForProgram& out, std::vector<Inherited> inherited) {
  std::erase_if(inherited, [&](const Inherited& one) {
    return std::any_of(out.numbers.begin(), out.numbers.end(),
                       [&](const ForProgram::Number& number) { return number.fd == one.fd; });
  });
  if (inherited.empty()) return ok();
  if (are_leaks(inherited)) {
    log_info("posix_spawn: %d connections are closed for the new program", static_cast<int>(inherited.size()));
    return ok();
  }
  if (Status made = out.process.prepare(); !made) return made;
  std::vector<transports::HandOver> wanted;
  wanted.reserve(inherited.size());
  for (const Inherited& one : inherited) wanted.push_back({one.fd, false});
  auto sockets = hand_overs().hand_over(wanted, out.process.relays_end());
  if (!sockets) return sockets.error();
  for (std::size_t i = 0; i < inherited.size(); ++i) {
    out.numbers.push_back({inherited[i].fd, true});
    out.sockets.push_back(std::move((*sockets)[i]));
  }
  return ok();
}

}  // namespace

Status SpawnedProcess::prepare() {
  const RaisedLimit beyond_full_table;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return Error::last("hand-over: pipe");
  relays_ = out_of_the_way(UniqueFd(ends[0]));
  ours_ = out_of_the_way(UniqueFd(ends[1]));
  return ok();
}

void SpawnedProcess::is(pid_t process) {
  // The relay may have ended. This process has the other end, too, so there is no SIGPIPE.
  if (ours_) [[maybe_unused]]
    const ssize_t told = ::write(ours_.get(), &process, sizeof process);
  ours_.reset();
}

Result<ForProgram> replace_for_program(const std::vector<int>& numbers, const std::function<bool(int fd)>& is_kept) {
  ForProgram out;
  if (Status done = replace_duplicated(out, numbers, is_kept); !done) {
    log_warn("posix_spawn: a descriptor cannot be passed on: %s", done.error().where);
    return Error{error_of_spawning(done.error()), done.error().where};
  }
  constexpr int kTries = 3;
  for (int tries = 1;; ++tries) {
    const Status done = replace_inherited(out, inherited_connections(is_kept));
    if (done) return out;
    if (done.error().code == ENOTCONN && tries < kTries) continue;
    log_warn("posix_spawn: connections are closed for the new program: %s", done.error().where);
    return out;
  }
}

}  // namespace ringsock::preload
