// A network interface whose packets rings send and receive.
#pragma once

#include <memory>

#include "core/base/result.h"
#include "core/device/soft/packet/packet_device.h"
#include "core/verbs/buffer_pool.h"
#include "core/verbs/handles.h"

namespace ringsock::vma {

/// One interface of one network namespace, opened as a device. Threads: any.
class Interface {
 public:
  /// `ifindex` of the calling thread's namespace. Errors: those of soft::PacketDevice::open().
  static Result<std::shared_ptr<Interface>> open(int ifindex, std::uint32_t mtu);
  Interface(const Interface&) = delete;
  Interface& operator=(const Interface&) = delete;
  ~Interface();

  [[nodiscard]] int ifindex() const { return ifindex_; }
  [[nodiscard]] verbs::Device& device() const { return *device_; }
  [[nodiscard]] ibv_pd& pd() const { return *pd_; }
  [[nodiscard]] verbs::BufferPool& pool() const { return *pool_; }

  /// In a forked child, before anything else: what is here is the parent's from now on, and must stay unused, and
  /// undestroyed.
  void forget_after_fork();

 private:
  explicit Interface(int ifindex) : ifindex_(ifindex) {}

  const int ifindex_;
  // Parents first.
  std::unique_ptr<soft::PacketDevice> device_;
  verbs::Pd pd_;
  std::unique_ptr<verbs::BufferPool> pool_;
};

}  // namespace ringsock::vma
