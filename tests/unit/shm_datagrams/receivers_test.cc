// Which socket gets a datagram: the kernel tells, and only one of the own user is a partner.
#include <arpa/inet.h>
#include <unistd.h>

#include "core/device/shm/datagrams/outgoing_ring.h"
#include "tests/unit/shm_cm/other_process.h"
#include "tests/unit/shm_datagrams/udp_world.h"

namespace ringsock::soft {
namespace {

using tests::Channel;
using tests::kBob;
using tests::local;
using tests::OtherProcess;
using tests::UdpEnd;

TEST(DatagramReceiver, IsTheSocketWithThePort) {
  const UdpEnd alice, bob;
  const auto found = find_receiver(alice.name, bob.name, alice.fd.get());
  ASSERT_TRUE(found);
  EXPECT_EQ(found->cookie, bob.cookie);
  EXPECT_EQ(found->uid, ::geteuid());
}

TEST(DatagramReceiver, IsTheSocketThatIsConnectedToTheSender) {
  const UdpEnd alice, bob, carol;
  const UdpEnd child(bob.name.port());  // as of a server that makes a socket for each client
  child.connect(alice.name);
  EXPECT_EQ(find_receiver(alice.name, bob.name, alice.fd.get())->cookie, child.cookie);
  EXPECT_EQ(find_receiver(carol.name, bob.name, carol.fd.get())->cookie, bob.cookie);
}

TEST(DatagramReceiver, IsNobodyWhereTheConnectedSocketHasAnotherPeer) {
  const UdpEnd alice, bob, carol;
  bob.connect(carol.name);
  EXPECT_EQ(find_receiver(alice.name, bob.name, alice.fd.get()).error().code, ENOENT);
}

TEST(DatagramReceiver, IsNobodyWhereThePortIsFree) {
  const UdpEnd alice;
  std::uint16_t port = 0;
  { port = UdpEnd().name.port(); }
  EXPECT_EQ(find_receiver(alice.name, local(port), alice.fd.get()).error().code, ENOENT);
}

TEST(DatagramReceiver, OfAnotherUserIsNoPartner) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  const UdpEnd alice;
  OtherProcess bob(kBob, [](Channel channel) {
    const UdpEnd end;
    channel.tell(end.name.port());
    return channel.hear() ? 0 : 1;
  });
  const auto port = bob.channel().hear();
  ASSERT_TRUE(port);
  const auto found = find_receiver(alice.name, local(static_cast<std::uint16_t>(*port)), alice.fd.get());
  EXPECT_EQ(found.error().code, EACCES);
}

}  // namespace
}  // namespace ringsock::soft
