// A verbs::Device without queues: it counts protection domains and memory registrations.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "core/verbs/connection_manager.h"
#include "core/verbs/device.h"

namespace ringsock::fakes {

/// Registration works and is counted; everything that needs a queue answers EOPNOTSUPP. Thread-safe.
class FakeDevice : public verbs::Device {
 public:
  explicit FakeDevice(const char* name = "fake", const verbs::DeviceTraits& traits = {},
                      std::unique_ptr<verbs::UdExtensions> ud = std::make_unique<verbs::UdExtensions>())
      : Device(traits, std::make_unique<verbs::RcExtensions>(), std::move(ud)), name_(name) {}

  /// Registrations alive, their bytes, and how many were ever made.
  [[nodiscard]] int live_registrations() const { return live_registrations_; }
  [[nodiscard]] std::size_t registered_bytes() const { return registered_bytes_; }
  [[nodiscard]] int registrations_made() const { return registrations_made_; }
  [[nodiscard]] int live_pds() const { return live_pds_; }
  /// Registrations that would exceed this many bytes in total fail with ENOMEM, as at RLIMIT_MEMLOCK.
  void set_registration_limit(std::size_t bytes) { limit_bytes_ = bytes; }

  ibv_context& context() override { return context_; }
  [[nodiscard]] const char* name() const override { return name_; }
  Result<ibv_device_attr> query_device() override { return unsupported(); }
  Result<ibv_port_attr> query_port(std::uint8_t) override { return unsupported(); }

  Result<verbs::Pd> alloc_pd() override {
    ++live_pds_;
    return verbs::Pd(*this, new ibv_pd{&context_, 0});
  }
  Result<verbs::Mr> reg_mr(ibv_pd& pd, void* address, std::size_t length, int) override {
    if (registered_bytes_.fetch_add(length) + length > limit_bytes_) {
      registered_bytes_ -= length;
      return Error{ENOMEM, "reg_mr"};
    }
    ++live_registrations_;
    const auto key = static_cast<std::uint32_t>(++registrations_made_);
    return verbs::Mr(*this, new ibv_mr{&context_, &pd, address, length, 0, key, key});
  }
  Result<verbs::CompChannel> create_comp_channel() override { return unsupported(); }
  Result<verbs::Cq> create_cq(int, void*, ibv_comp_channel*, int) override { return unsupported(); }
  Result<ibv_cq*> get_cq_event(ibv_comp_channel&) override { return unsupported(); }
  void ack_cq_events(ibv_cq&, unsigned int) override {}
  Result<verbs::Qp> create_qp(ibv_pd&, ibv_qp_init_attr&) override { return unsupported(); }
  Status modify_qp(ibv_qp&, ibv_qp_attr&, int) override { return unsupported(); }
  Status query_qp(ibv_qp&, ibv_qp_attr&, int, ibv_qp_init_attr&) override { return unsupported(); }
  Result<ibv_async_event> get_async_event() override { return unsupported(); }
  void ack_async_event(ibv_async_event&) override {}

  int dealloc_pd(ibv_pd* pd) override {
    --live_pds_;
    delete pd;
    return 0;
  }
  int dereg_mr(ibv_mr* mr) override {
    --live_registrations_;
    registered_bytes_ -= mr->length;
    delete mr;
    return 0;
  }
  int destroy_comp_channel(ibv_comp_channel*) override { return EINVAL; }
  int destroy_cq(ibv_cq*) override { return EINVAL; }
  int destroy_qp(ibv_qp*) override { return EINVAL; }

 private:
  static Error unsupported() { return {EOPNOTSUPP, "fake device"}; }

  ibv_context context_{};
  const char* name_;
  std::atomic<int> live_pds_ = 0;
  std::atomic<int> live_registrations_ = 0;
  std::atomic<int> registrations_made_ = 0;
  std::atomic<std::size_t> registered_bytes_ = 0;
  std::atomic<std::size_t> limit_bytes_ = SIZE_MAX;
};

}  // namespace ringsock::fakes
