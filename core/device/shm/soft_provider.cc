#include "core/device/shm/soft_provider.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>

#include "core/device/shm/names/port_name.h"
#include "core/device/shm/names/port_reservation.h"
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
  [[nodiscard]] bool has_port_unseen(verbs::PortSpace space, const SocketAddress& address) override {
    return is_number_taken(space, address);
  }

 private:
  const SoftAbilities abilities_;
};

}  // namespace

std::unique_ptr<verbs::DeviceProvider> make_soft_provider(SoftAbilities abilities) {
  return std::make_unique<SoftProvider>(abilities);
}

namespace {
bool is_name_of_port(const sockaddr_un& name, socklen_t length) {
  constexpr std::size_t kStart = offsetof(sockaddr_un, sun_path) + 1;
  if (name.sun_family != AF_UNIX || length <= kStart || length > sizeof name || name.sun_path[0] != '\0') return false;
  return parse_port_name({name.sun_path + 1, length - kStart}).has_value();
}
}  // namespace

/// The accepted end has the name of its listener, and the other end has it as its peer's.
bool is_link(int fd) noexcept {
  const int saved_errno = errno;
  bool is_one = false;
  for (const auto ask : {::getsockname, ::getpeername}) {
    sockaddr_un name{};
    socklen_t length = sizeof name;
    is_one |= ask(fd, reinterpret_cast<sockaddr*>(&name), &length) == 0 && is_name_of_port(name, length);
  }
  errno = saved_errno;
  return is_one;
}

}  // namespace ringsock::soft
