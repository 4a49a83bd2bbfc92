// Which sockets have a part in a port, by the kernel's rules and by its word.
#include "libvmacompat/udp/port_holders.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <vector>

namespace ringsock::vma {
namespace {

PortPlace at(const char* host, std::uint16_t port, bool v6_only = false, int interface = 0) {
  in_addr v4{};
  if (::inet_pton(AF_INET, host, &v4) == 1) return {SocketAddress::v4(ntohl(v4.s_addr), port), v6_only, interface};
  in6_addr v6{};
  EXPECT_EQ(::inet_pton(AF_INET6, host, &v6), 1);
  return {SocketAddress::v6(v6, port, 0), v6_only, interface};
}

TEST(PortPlace, CompetesForWhatItCoversToo) {
  EXPECT_TRUE(compete(at("10.9.0.1", 7), at("10.9.0.1", 7)));
  EXPECT_TRUE(compete(at("10.9.0.1", 7), at("0.0.0.0", 7)));
  EXPECT_TRUE(compete(at("0.0.0.0", 7), at("10.9.0.1", 7)));
  EXPECT_TRUE(compete(at("10.9.0.1", 7), at("::ffff:10.9.0.1", 7)));
  EXPECT_TRUE(compete(at("10.9.0.1", 7), at("::", 7)));
  EXPECT_TRUE(compete(at("::", 7), at("10.9.0.1", 7)));
  EXPECT_TRUE(compete(at("fd09::1", 7), at("::", 7, true)));
}

TEST(PortPlace, DoesNotCompeteForAnythingElse) {
  EXPECT_FALSE(compete(at("10.9.0.1", 7), at("10.9.0.1", 8)));
  EXPECT_FALSE(compete(at("10.9.0.1", 7), at("10.9.0.3", 7)));
  EXPECT_FALSE(compete(at("10.9.0.1", 7), at("::", 7, true)));
  EXPECT_FALSE(compete(at("fd09::1", 7), at("0.0.0.0", 7)));
  EXPECT_FALSE(compete(at("fd09::1", 7), at("10.9.0.1", 7)));
}

TEST(PortPlace, TheLoopbackIsNeverARings) {
  EXPECT_FALSE(compete(at("0.0.0.0", 7), at("127.0.0.1", 7)));
  EXPECT_FALSE(compete(at("::", 7), at("::1", 7)));
  EXPECT_FALSE(compete(at("0.0.0.0", 7), at("0.0.0.0", 7, false, 1)));
}

TEST(PortPlace, InterfacesTellSocketsApart) {
  EXPECT_FALSE(compete(at("0.0.0.0", 7, false, 2), at("0.0.0.0", 7, false, 3)));
  EXPECT_TRUE(compete(at("0.0.0.0", 7, false, 2), at("0.0.0.0", 7, false, 2)));
  EXPECT_TRUE(compete(at("0.0.0.0", 7), at("0.0.0.0", 7, false, 3)));
}

struct Bound {
  explicit Bound(std::uint16_t port = 0) : fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    EXPECT_EQ(::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    socklen_t length = sizeof address;
    EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
    this->port = ntohs(address.sin_port);
  }
  [[nodiscard]] ino_t inode() const {
    struct stat about {};
    EXPECT_EQ(::fstat(fd.get(), &about), 0);
    return about.st_ino;
  }
  UniqueFd fd;
  std::uint16_t port = 0;
};

TEST(SocketDiagnosis, NamesAllSocketsOfAPort) {
  const Bound one;
  const Bound two(one.port);
  const Bound other;
  auto kernel = SocketDiagnosis::open();
  ASSERT_TRUE(kernel);
  std::vector<ino_t> found;
  const Status asked = kernel->holders(one.port, [&](const PortHolder& holder) {
    EXPECT_EQ(holder.place.local.port(), one.port);
    EXPECT_EQ(holder.uid, ::geteuid());
    found.push_back(holder.inode);
    return true;
  });
  ASSERT_TRUE(asked) << asked.error().where;
  std::vector<ino_t> expected{one.inode(), two.inode()};
  std::sort(found.begin(), found.end());
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(found, expected);
}

TEST(SocketDiagnosis, AnswersAnewWhenSomebodyHadEnough) {
  std::vector<Bound> many;
  many.emplace_back();
  for (int i = 1; i < 400; ++i) many.emplace_back(many.front().port);  // several parts of an answer
  auto kernel = SocketDiagnosis::open();
  ASSERT_TRUE(kernel);
  int visits = 0;
  EXPECT_TRUE(kernel->holders(many.front().port, [&](const PortHolder&) { return ++visits < 3; }));
  EXPECT_EQ(visits, 3);
  const Bound other;
  std::vector<ino_t> found;
  const auto collect = [&](const PortHolder& holder) {
    found.push_back(holder.inode);
    return true;
  };
  ASSERT_TRUE(kernel->holders(other.port, collect));
  EXPECT_EQ(found, std::vector<ino_t>{other.inode()});
  EXPECT_TRUE(kernel->names([](const NameHolder&) { return false; }));
  found.clear();
  ASSERT_TRUE(kernel->holders(many.front().port, collect));
  EXPECT_EQ(found.size(), many.size());
}

}  // namespace
}  // namespace ringsock::vma
