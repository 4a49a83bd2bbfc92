// An Ethernet whose one interface is a FakeCard, and whose tables are those of a FakeKernel. It takes the place of
// core/ethernet/ethernet.cc in a test program.
#pragma once

#include <memory>

#include "core/ethernet/ethernet.h"
#include "core/ethernet/interface.h"
#include "tests/fakes/fake_card.h"
#include "tests/unit/net/fake_kernel.h"

namespace ringsock::fakes {

/// What Ethernet::of_socket() finds, as long as the object lives. There is one at a time.
class FakeEthernet {
 public:
  static constexpr int kIndex = 7;
  static constexpr unsigned kSendPlaces = 4;  ///< of a ring

  /// @param here  the interface's address
  explicit FakeEthernet(const SocketAddress& here);
  FakeEthernet(const FakeEthernet&) = delete;
  FakeEthernet& operator=(const FakeEthernet&) = delete;
  ~FakeEthernet();

  /// Has the kernel tell this, and everybody hear it.
  void happens(const net::KernelEvent& event);

  net::KernelScript kernel;  ///< every path leads by the interface to a neighbour that is known, unless a test says no
  net::LinkEvent link;
  net::AddressEvent address;
  FakeCard* card = nullptr;  ///< of `interface`
  std::shared_ptr<ethernet::Interface> interface;
  std::shared_ptr<ethernet::Ethernet> ethernet;
};

}  // namespace ringsock::fakes
