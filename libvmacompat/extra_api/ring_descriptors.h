// Descriptors that stand for rings, by which a program polls them and names them to the Extra API.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/ethernet/ring.h"
#include "core/ethernet/ring_events.h"
#include "core/extra_api/polled_ring.h"
#include "core/runtime/endpoint.h"
#include "libvmacompat/process/watched_streams.h"

namespace ringsock::vma {

/// The endpoint under such a descriptor. It is readable while any socket of the ring has packets that nobody has read,
/// and does not keep the ring. In a forked child, and once the ring has ended, poll(2) reports POLLHUP. Threads: any.
class RingDescriptor final : public runtime::Endpoint, public PolledRing {
 public:
  explicit RingDescriptor(const std::shared_ptr<ethernet::Ring>& ring);
  ~RingDescriptor() override;

  /// Returns the ring, or null once is_over().
  [[nodiscard]] std::shared_ptr<ethernet::Ring> ring() const;
  /// Returns whether the ring has ended, or is another process's.
  [[nodiscard]] bool is_over() const;

  std::uint32_t ready() noexcept override;
  runtime::WaitFds arm() noexcept override;
  void woken() noexcept override;
  void closed() noexcept override;
  PolledRing* as_polled_ring() noexcept override { return this; }

  // -- PolledRing (ring_completions.cc)
  Result<std::size_t> collect(std::span<vma_completion_t> out) override;

 private:
  std::size_t collect_datagrams(ethernet::Ring& ring, std::span<vma_completion_t> out);

  const std::weak_ptr<ethernet::Ring> ring_;
  const unsigned process_;  ///< fork_generation()
  ethernet::RingEvents events_;
  WatchedStreams& streams_;  ///< of another ring once is_over()
};

/// The descriptors that the program has got. A ring has one, until the program closes it. Threads: any.
class RingDescriptors {
 public:
  /// Returns the ring's descriptor; makes it at the first call. Descriptors of rings that have ended are closed here.
  /// Errors: EMFILE, ENFILE; those of FdTable::insert().
  Result<int> of(const std::shared_ptr<ethernet::Ring>& ring);
  /// A leaf lock, which is held across fork(2).
  Mutex& lock() { return lock_; }

 private:
  struct Known {
    int fd;
    runtime::Ref descriptor;
    const ethernet::Ring* ring;  ///< only compared
    [[nodiscard]] bool is_open() const;
    [[nodiscard]] bool is_over() const;
  };
  void close_ended();
  [[nodiscard]] std::optional<int> find(const ethernet::Ring& ring) const;
  static Result<Known> make(const std::shared_ptr<ethernet::Ring>& ring);

  Mutex lock_;
  std::vector<Known> known_;
};

RingDescriptors& ring_descriptors();

/// Returns the ring of a descriptor of ring_descriptors(), or null when the descriptor is none.
std::shared_ptr<ethernet::Ring> ring_of_descriptor(int fd);

}  // namespace ringsock::vma
