// Descriptors of endpoints that are sent to other processes or given to posix_spawn(3).
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

#include "core/base/log.h"
#include "core/base/own_duplicate.h"
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

/// What the program that is spawned gets in place of connections on a ring, for which relays are made.
struct Replaced {
  std::vector<transports::HandOver> connections;
  std::vector<UniqueFd> sockets;
};

/// Makes kernel sockets for the connections under these numbers. One that another process uses becomes the kernel's in
/// this process, too, and needs no replacement then. Errors: those of hand_over() and hand_over_for_good().
Result<Replaced> replace_for_program(const std::vector<int>& numbers) {
  for (bool is_last_try = false;; is_last_try = true) {
    Replaced replaced;
    std::vector<runtime::Ref> endpoints;
    for (const int fd : numbers) {
      runtime::Ref connection = prepare_to_pass(fd);
      if (!connection) continue;
      replaced.connections.push_back({fd, true});
      endpoints.push_back(std::move(connection));
    }
    if (replaced.connections.empty()) return replaced;
    auto sockets = hand_overs().hand_over(replaced.connections);
    if (sockets) {
      replaced.sockets = *std::move(sockets);
      return replaced;
    }
    if (is_last_try || error_of_passing(sockets.error()) != EOPNOTSUPP) return sockets.error();
    if (Status done = make_kernels(std::move(endpoints)); !done) return done.error();
  }
}

}  // namespace

int spawn_with(const std::vector<int>& numbers, const std::function<int()>& spawn) {
  const LibraryCall no_handlers;
  const auto carry_out = [&] {
    const OutsideLibrary child_inherits_mask;
    return spawn();
  };
  const auto replaced = replace_for_program(numbers);
  if (!replaced) {
    log_warn("posix_spawn: a descriptor cannot be passed on: %s", replaced.error().where);
    const int error = error_of_passing(replaced.error());
    return error == EOPNOTSUPP ? EIO : error;
  }
  std::vector<UniqueFd> originals;
  for (std::size_t i = 0; i < replaced->sockets.size(); ++i) {
    const int fd = replaced->connections[i].fd;
    originals.push_back(own_duplicate(fd));
    if (originals.back()) real.dup3(replaced->sockets[i].get(), fd, O_CLOEXEC);
  }
  const int answer = carry_out();
  for (std::size_t i = 0; i < originals.size(); ++i) {
    if (originals[i]) real.dup3(originals[i].get(), replaced->connections[i].fd, O_CLOEXEC);
  }
  return answer;
}

}  // namespace ringsock::preload
