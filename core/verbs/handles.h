// Owning handles of verbs objects.
#pragma once

#include <infiniband/verbs.h>

#include <utility>

#include "core/base/result.h"

namespace ringsock::verbs {

class Device;

namespace detail {
int destroy(Device& device, ibv_pd* object);
int destroy(Device& device, ibv_mr* object);
int destroy(Device& device, ibv_comp_channel* object);
int destroy(Device& device, ibv_cq* object);
int destroy(Device& device, ibv_srq* object);
int destroy(Device& device, ibv_qp* object);
int destroy(Device& device, ibv_ah* object);
int destroy(Device& device, ibv_flow* object);
/// Logs a failed destroy call, which means that a child is still alive. Never throws.
void report_teardown_failure(int error);
}  // namespace detail

/// Owns one verbs object of a device and destroys it. Moves only. Declare parents first: members are destroyed in
/// reverse order, children before parents.
template <class T>
class Handle {
 public:
  Handle() = default;
  Handle(Device& device, T* object) : device_(&device), object_(object) {}
  Handle(Handle&& other) noexcept : device_(other.device_), object_(std::exchange(other.object_, nullptr)) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) {
      reset();
      device_ = other.device_;
      object_ = std::exchange(other.object_, nullptr);
    }
    return *this;
  }
  ~Handle() { reset(); }

  [[nodiscard]] T* get() const { return object_; }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  explicit operator bool() const { return object_ != nullptr; }
  /// Releases the object, which the caller must destroy.
  [[nodiscard]] T* release() { return std::exchange(object_, nullptr); }
  void reset() {
    if (T* object = std::exchange(object_, nullptr)) {
      if (int error = detail::destroy(*device_, object)) detail::report_teardown_failure(error);
    }
  }

 private:
  Device* device_ = nullptr;
  T* object_ = nullptr;
};

using Pd = Handle<ibv_pd>;
using Mr = Handle<ibv_mr>;
using CompChannel = Handle<ibv_comp_channel>;
using Cq = Handle<ibv_cq>;
using Srq = Handle<ibv_srq>;
using Qp = Handle<ibv_qp>;
using Ah = Handle<ibv_ah>;
using Flow = Handle<ibv_flow>;

/// ibv_create_flow(3). Errors: EINVAL malformed rule, EOPNOTSUPP a rule that the device does not support, EEXIST the
/// rule exists already, EPERM, ENOMEM.
Result<Flow> create_flow(Device& device, ibv_qp& qp, ibv_flow_attr& attr);
/// Moves a new raw packet queue pair to the state in which it sends and receives. Errors: those of ibv_modify_qp(3).
Status start_raw_packet_qp(Device& device, ibv_qp& qp);

}  // namespace ringsock::verbs
