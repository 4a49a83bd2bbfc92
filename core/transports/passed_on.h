// The calls that an endpoint passes on to its way.
#pragma once

#include "core/runtime/endpoint.h"

namespace ringsock::transports {

/// What an endpoint with a way does not answer itself, whatever its state. `TheEndpoint` derives from it, and has
/// roles(), whose result has the members of runtime::Roles: of the types of the parts where these are known, so that a
/// call costs no second look-up of a virtual function.
template <class TheEndpoint>
class PassedOn : public runtime::Endpoint {
 public:
  void keep_error(int code) noexcept final { by_way().transfer.keep_error(code); }
  Result<int> unread_bytes() final { return by_way().transfer.unread_bytes(); }
  Result<int> unsent_bytes() final { return by_way().transfer.unsent_bytes(); }
  vma::ApiSocket* as_api_socket() noexcept final {
    return this->has_left_to_kernel() ? nullptr : by_way().transfer.as_api_socket();
  }

  void look_for_end() noexcept final { by_way().readiness.look_for_end(); }
  runtime::Listable* listable() noexcept final { return by_way().readiness.listable(); }
  std::uint32_t arrival_stamp() noexcept final { return by_way().readiness.arrival_stamp(); }
  [[nodiscard]] std::uint64_t taken_in_turns() const noexcept final { return by_way().readiness.taken_in_turns(); }
  void expect_turns() noexcept final { by_way().readiness.expect_turns(); }
  [[nodiscard]] bool waits_for_our_cpus() const noexcept final { return by_way().readiness.waits_for_our_cpus(); }

  void descriptor_closed(int fd) noexcept final { by_way().descriptors.descriptor_closed(fd); }
  void descriptor_vanished(int fd) noexcept final { by_way().descriptors.descriptor_vanished(fd); }
  Nanos linger() noexcept final { return by_way().descriptors.linger(); }
  bool is_drained() noexcept final { return by_way().descriptors.is_drained(); }
  bool owns_descriptor(int fd) const noexcept final { return by_way().descriptors.owns_descriptor(fd); }
  void give_up_descriptor() noexcept final { by_way().descriptors.give_up_descriptor(); }

  void before_fork() noexcept final { by_way().process_life.before_fork(); }
  void process_ends() noexcept final { by_way().process_life.process_ends(); }
  void process_goes_on() noexcept final { by_way().process_life.process_goes_on(); }

 private:
  [[nodiscard]] decltype(auto) by_way() const { return static_cast<const TheEndpoint&>(*this).roles(); }
};

}  // namespace ringsock::transports
