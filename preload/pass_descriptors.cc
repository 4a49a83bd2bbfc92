// Descriptors of ours on their way to other processes, other than by fork(2) and exec(2).
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

#include "core/base/log.h"
#include "preload/hand_over.h"
#include "preload/route.h"

namespace ringsock::preload {

namespace {

/// A copy of a message's control data in which descriptors can be exchanged.
class ControlCopy {
 public:
  explicit ControlCopy(const msghdr& message)
      : bytes_(static_cast<const std::byte*>(message.msg_control),
               static_cast<const std::byte*>(message.msg_control) + message.msg_controllen),
        message_(message) {
    message_.msg_control = bytes_.data();
  }
  [[nodiscard]] const msghdr& message() const { return message_; }

  /// Calls `visit(int fd)` for each descriptor; what it returns takes the place.
  template <class Visit>
  void for_each_descriptor(Visit visit) {
    for (cmsghdr* header = CMSG_FIRSTHDR(&message_); header != nullptr; header = CMSG_NXTHDR(&message_, header)) {
      if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
      if (header->cmsg_len < CMSG_LEN(0)) return;
      const std::size_t left =
          bytes_.size() - static_cast<std::size_t>(reinterpret_cast<std::byte*>(header) - bytes_.data());
      const std::size_t count = (std::min<std::size_t>(header->cmsg_len, left) - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < count; ++i) {
        unsigned char* const place = CMSG_DATA(header) + i * sizeof(int);
        int fd = -1;
        std::memcpy(&fd, place, sizeof fd);
        fd = visit(fd);
        std::memcpy(place, &fd, sizeof fd);
      }
    }
  }

 private:
  std::vector<std::byte> bytes_;
  msghdr message_;
};

/// Lets an endpoint that goes as it is know of it, too.
bool must_be_handed_over(int fd) {
  const runtime::Ref endpoint = fd_table().get(fd);
  if (endpoint) endpoint->passed_on();
  return endpoint && ring_connection(*endpoint) != nullptr;
}

}  // namespace

ssize_t send_with_control(int fd, const msghdr& message, int flags) {
  if (message.msg_control == nullptr) return real.sendmsg(fd, &message, flags);
  ControlCopy copy(message);
  std::vector<HandOver> wanted;
  copy.for_each_descriptor([&](int passed) {
    if (must_be_handed_over(passed)) wanted.push_back({passed, false});
    return passed;
  });
  if (wanted.empty()) return real.sendmsg(fd, &message, flags);
  auto replacements = hand_over(wanted);
  if (!replacements) {
    log_warn("sendmsg: descriptor %d cannot be passed on: %s", wanted.front().fd, replacements.error().where);
    errno = EOPNOTSUPP;
    return -1;
  }
  std::size_t next = 0;
  copy.for_each_descriptor([&](int passed) {
    const bool is_next = next < wanted.size() && wanted[next].fd == passed;
    return is_next ? (*replacements)[next++].get() : passed;
  });
  return real.sendmsg(fd, &copy.message(), flags);
}

int send_many_with_control(int fd, mmsghdr* messages, unsigned count, int flags) {
  unsigned done = 0;
  for (; done < std::min<unsigned>(count, IOV_MAX); ++done) {
    const ssize_t sent = send_with_control(fd, messages[done].msg_hdr, flags);
    if (sent < 0) return done > 0 ? static_cast<int>(done) : -1;
    messages[done].msg_len = static_cast<unsigned>(sent);
  }
  return static_cast<int>(done);
}

int spawn_with(const std::vector<int>& numbers, const std::function<int()>& spawn) {
  std::vector<HandOver> wanted;
  for (const int fd : numbers) {
    if (must_be_handed_over(fd)) wanted.push_back({fd, true});
  }
  if (wanted.empty()) return spawn();
  auto replacements = hand_over(wanted);
  if (!replacements) {
    log_warn("posix_spawn: descriptor %d cannot be passed on: %s", wanted.front().fd, replacements.error().where);
    return spawn();
  }
  std::vector<UniqueFd> originals;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    originals.emplace_back(real.fcntl(wanted[i].fd, F_DUPFD_CLOEXEC, 0));
    if (originals.back()) real.dup3((*replacements)[i].get(), wanted[i].fd, O_CLOEXEC);
  }
  const int answer = spawn();
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (originals[i]) real.dup3(originals[i].get(), wanted[i].fd, O_CLOEXEC);
  }
  return answer;
}

}  // namespace ringsock::preload
