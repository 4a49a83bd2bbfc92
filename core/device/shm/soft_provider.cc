#include "core/device/shm/soft_provider.h"

#include "core/net/local_address.h"

namespace ringsock::soft {

namespace {

class SoftProvider final : public verbs::DeviceProvider {
 public:
  explicit SoftProvider(SoftAbilities abilities) : abilities_(abilities) {}
  [[nodiscard]] const char* name() const override { return kSoftDeviceName; }
  [[nodiscard]] verbs::DeviceKind kind() const override { return verbs::DeviceKind::soft; }
  bool reaches(const SocketAddress& address) override {
    if (address.is_wildcard() || address.is_loopback()) return true;
    const auto local = net::is_local_address(address);
    return local && *local;
  }
  Result<std::unique_ptr<verbs::Device>> open() override {
    auto device = SoftDevice::open(abilities_);
    if (!device) return device.error();
    return std::unique_ptr<verbs::Device>(*std::move(device));
  }

 private:
  const SoftAbilities abilities_;
};

}  // namespace

std::unique_ptr<verbs::DeviceProvider> make_soft_provider(SoftAbilities abilities) {
  return std::make_unique<SoftProvider>(abilities);
}

}  // namespace ringsock::soft
