// The extended verbs_context of a software device, whose operations <infiniband/verbs.h> calls.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

#include "core/verbs/device.h"

namespace ringsock::soft {

/// A verbs_context and its ibv_device. The device sets the operations that it supports. Every other operation returns
/// EOPNOTSUPP, so that no inline verb calls a null pointer.
class VerbsFrame {
 public:
  /// @param async_fd  ibv_context::async_fd, not owned
  VerbsFrame(verbs::Device& device, const char* name, int async_fd);
  ~VerbsFrame();
  VerbsFrame(const VerbsFrame&) = delete;
  VerbsFrame& operator=(const VerbsFrame&) = delete;

  [[nodiscard]] verbs_context& operations() { return frame_.verbs; }
  [[nodiscard]] ibv_context& context() { return frame_.verbs.context; }
  static verbs::Device& device_of(ibv_context& context);

 private:
  /// Standard layout, so that casting the ibv_context back to the frame is well defined.
  struct Frame {
    verbs_context verbs;
    ibv_device device;
    verbs::Device* owner;
  };
  Frame frame_{};
};

/// Returns the object, released from its handle for the C caller to own, or null with errno set.
template <class T>
T* to_c(Result<verbs::Handle<T>> result) {
  if (result) return result->release();
  errno = result.error().code;
  return nullptr;
}

template <class T>
T* unsupported() {
  errno = EOPNOTSUPP;
  return nullptr;
}

/// ibv_create_qp_ex(3) by Device::create_qp().
/// @param known  bits of comp_mask that the device takes, IBV_QP_INIT_ATTR_PD among them
ibv_qp* create_qp_extended(ibv_context* context, ibv_qp_init_attr_ex* attr, std::uint32_t known);

/// Returns a number that no other queue pair of the software devices of this process has: 24 bits, never 0 or 1.
std::uint32_t next_qp_num();

}  // namespace ringsock::soft
