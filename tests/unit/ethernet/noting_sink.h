// A sink of any protocol that writes down what it gets.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "core/ethernet/packet_sink.h"
#include "tests/fakes/fake_endpoint.h"

namespace ringsock::ethernet {

/// Writes down what it is given.
class NotingSink final : public PacketSink {
 public:
  [[nodiscard]] bool accepts(const wire::EndName& source) const noexcept override {
    return !only_from || wire::EndName::of(*only_from) == source;
  }
  Delivery deliver(Incoming& incoming, const wire::EndName& source) noexcept override {
    if (!accepts(source)) return Delivery::refused;
    const Packet& packet = incoming.packet();
    seen.emplace_back(reinterpret_cast<const char*>(packet.payload.data()), packet.payload.size());
    protocols.push_back(packet.layout.protocol);
    auto kept = incoming.keep();
    if (kept) arrivals.push_back(*std::move(kept));
    return Delivery::waits;
  }
  runtime::Endpoint& endpoint() noexcept override { return *endpoint_; }
  [[nodiscard]] bool shares_port() const noexcept override { return shares; }
  [[nodiscard]] bool has_waiting() const noexcept override { return !arrivals.empty(); }

  std::optional<SocketAddress> only_from;
  bool shares = false;
  std::vector<std::string> seen;
  std::vector<std::uint8_t> protocols;
  std::vector<Arrival> arrivals;

 private:
  runtime::Ref owner_{new fakes::FakeEndpoint};
  runtime::Endpoint* endpoint_ = owner_.get();
};

}  // namespace ringsock::ethernet
