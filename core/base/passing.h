// One descriptor in a message of an AF_UNIX socket (SCM_RIGHTS, unix(7)).
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstring>

#include "core/base/close_elsewhere.h"

namespace ringsock {

/// Room for the control message that passes a descriptor. It stays as long as the message.
struct PassingRoom {
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> bytes{};
};

/// Has `message` pass `descriptor`, and nothing else in its control data.
inline void pass_with(msghdr& message, PassingRoom& room, int descriptor) {
  message.msg_control = room.bytes.data();
  message.msg_controllen = room.bytes.size();
  cmsghdr* const rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof descriptor);
  std::memcpy(CMSG_DATA(rights), &descriptor, sizeof descriptor);
}

/// Returns the descriptor that came with a received message. There must have been room for one only: the kernel has
/// closed others that a sender might pass.
inline PassedFd passed_with(msghdr& message) {
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    if (header->cmsg_len < CMSG_LEN(sizeof(int))) continue;
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
    return PassedFd(UniqueFd(fd));
  }
  return {};
}

}  // namespace ringsock
