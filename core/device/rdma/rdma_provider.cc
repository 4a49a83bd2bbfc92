#include "core/device/rdma/rdma_provider.h"

#include "core/device/rdma/rdma_devices.h"
#include "core/net/source_address.h"

namespace ringsock::rdma {

namespace {

class RdmaProvider final : public verbs::DeviceProvider {
 public:
  RdmaProvider(const Calls& calls, RdmaUse use) : devices_(std::make_shared<RdmaDevices>(calls, std::move(use))) {}
  [[nodiscard]] const char* name() const override { return "rdma"; }
  [[nodiscard]] verbs::DeviceKind kind() const override { return verbs::DeviceKind::rdma; }
  bool reaches(const SocketAddress& address) override {
    if (address.is_loopback() || !devices_->present()) return false;
    if (address.is_wildcard() || address.is_infiniband()) return true;
    const auto source = net::source_address(address);
    return source && devices_->owns(*source);
  }
  Result<std::unique_ptr<verbs::Device>> open() override {
    auto device = devices_->open_first();
    if (!device) return device.error();
    return std::unique_ptr<verbs::Device>(*std::move(device));
  }

 private:
  const std::shared_ptr<RdmaDevices> devices_;
};

}  // namespace

std::unique_ptr<verbs::DeviceProvider> make_rdma_provider(RdmaUse use, const Calls& calls) {
  return std::make_unique<RdmaProvider>(calls, std::move(use));
}

}  // namespace ringsock::rdma
