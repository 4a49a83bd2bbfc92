// Descriptors that go from one process to another (unix(7), SCM_RIGHTS).
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cstring>

namespace ringsock::support {

/// A message of one byte with room for one descriptor.
struct DescriptorMessage {
  DescriptorMessage() {
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
  }
  DescriptorMessage(const DescriptorMessage&) = delete;
  DescriptorMessage& operator=(const DescriptorMessage&) = delete;

  char byte = '!';
  iovec part{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
};

/// Returns whether `fd` was sent over the AF_UNIX socket; errno otherwise.
inline bool send_descriptor(int over, int fd) {
  DescriptorMessage out;
  cmsghdr* const header = CMSG_FIRSTHDR(&out.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  return ::sendmsg(over, &out.message, 0) == 1;
}

/// Returns the descriptor, or -1 when none has come.
inline int receive_descriptor(int over) {
  DescriptorMessage in;
  if (::recvmsg(over, &in.message, 0) != 1) return -1;
  const cmsghdr* const header = CMSG_FIRSTHDR(&in.message);
  int fd = -1;
  if (header != nullptr) std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return fd;
}

}  // namespace ringsock::support
