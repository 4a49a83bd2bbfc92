// Another user with descriptors whose close takes a minute, at every moment of a connection, on a kernel that can keep
// descriptors out (SO_PASSRIGHTS) and on one that cannot; and with more memory than a connection needs.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <functional>

#include "core/base/close_elsewhere.h"
#include "core/base/refusals.h"
#include "core/device/shm/link/strangers.h"
#include "tests/unit/shm_cm/attacker.h"
#include "tests/unit/shm_cm/other_process.h"
#include "tests/unit/shm_cm/soft_host.h"

namespace ringsock::tests {
namespace {

using soft::LinkPacket;

/// How long a victim that is not held up may take on a busy machine. The attackers' descriptors hold up for a minute.
constexpr int kPatienceMs = 30'000;

enum class Kernel { keeps_descriptors_out, old };
enum Order : std::uint32_t { look_around = 1, close_all, connect_to, count_refusals };

/// A program with a listener that never sleeps: it does what it is told and says when that is done.
class Victim {
 public:
  explicit Victim(Channel parent) : parent_(parent), listener_(host_.listener()) {}

  int live() {
    parent_.tell(listener_->local_address().port());
    while (const auto order = parent_.hear()) {
      std::uint32_t answer = 0;
      switch (*order) {
        case look_around: answer = look(); break;
        case close_all: close(); break;
        case connect_to: connect(); break;
        case count_refusals:
          answer = static_cast<std::uint32_t>(refusals_counted(static_cast<Refusal>(*parent_.hear())));
        default: break;
      }
      parent_.tell(answer);
    }
    return 0;
  }

 private:
  /// As an event loop does. How many connections it has.
  std::uint32_t look() {
    while (auto event = listener_->next_event()) {
      if (event->type != CmEventType::connect_request) continue;
      End server{std::move(event->request), {}};
      ibv_qp_init_attr attr{};
      attr.send_cq = attr.recv_cq = host_.cq.get();
      attr.cap = {8, 8, 1, 1, 64};
      attr.qp_type = IBV_QPT_RC;
      auto qp = server.id->create_qp(*host_.pd, attr, 4096);
      if (!qp) continue;
      server.qp = std::move(*qp);
      if (server.id->accept({})) ends_.push_back(std::move(server));
    }
    for (End& end : ends_) static_cast<void>(end.id->next_event());
    ibv_wc completion{};
    for (int i = 0; i < 100; ++i) ibv_poll_cq(host_.cq.get(), 1, &completion);
    return static_cast<std::uint32_t>(ends_.size());
  }
  void close() {
    for (End& end : ends_) end.close();
    ends_.clear();
    listener_.reset();
  }
  void connect() {
    const auto port = parent_.hear();
    ends_.push_back(start_connect(host_, SocketAddress::v4(INADDR_LOOPBACK, static_cast<std::uint16_t>(*port))));
  }

  Channel parent_;
  SoftHost host_;
  std::unique_ptr<ConnectionId> listener_;
  std::vector<End> ends_;
};

class Strangers : public ::testing::TestWithParam<Kernel> {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root to be two users";
    victim_ = std::make_unique<OtherProcess>(kAlice, [](Channel parent) {
      if (GetParam() == Kernel::old && !become_old_kernel()) return 90;
      return Victim(parent).live();
    });
    const auto port = victim_->channel().hear();
    ASSERT_TRUE(port);
    port_ = static_cast<std::uint16_t>(*port);
  }
  /// Starts somebody who attacks, and says so step by step; the victim goes on in between.
  void attack(const std::function<int(Attacker&, const std::function<void()>& step)>& body) {
    OtherProcess attacker(kBob, [&](Channel parent) {
      Attacker self;
      return body(self, [&] {
        parent.tell(0);
        [[maybe_unused]] const auto go_on = parent.hear();
      });
    });
    while (attacker.channel().hear()) {
      ASSERT_TRUE(tell_victim({look_around})) << "the victim stands still";
      attacker.channel().tell(0);
    }
    EXPECT_EQ(attacker.wait(), 0) << "the attack did not happen";
    ASSERT_TRUE(tell_victim({look_around})) << "the victim stands still once the attacker has gone";
  }
  std::optional<std::uint32_t> tell_victim(std::initializer_list<std::uint32_t> orders) {
    for (const std::uint32_t order : orders) victim_->channel().tell(order);
    if (!victim_->channel().can_hear(kPatienceMs)) return std::nullopt;
    return victim_->channel().hear();
  }
  /// What the victim has counted since it was forked.
  std::uint32_t refusals(Refusal of) {
    const auto counted = tell_victim({count_refusals, static_cast<std::uint32_t>(of)});
    return counted.value_or(UINT32_MAX) - static_cast<std::uint32_t>(refusals_counted(of));
  }
  void expect_victim_serves_others_and_ends() {
    OtherProcess honest(0, [&](Channel) {
      SoftHost host;
      End client = start_connect(host, SocketAddress::v4(INADDR_LOOPBACK, port_));
      return next(*client.id).type == CmEventType::established ? 0 : 1;
    });
    int status = -1;
    while (!honest.has_ended(status)) ASSERT_TRUE(tell_victim({look_around}));
    EXPECT_EQ(status, 0) << "an honest client of a third user";
    EXPECT_TRUE(tell_victim({close_all})) << "the victim stands still while it closes everything";
    victim_->channel().hang_up();
    EXPECT_EQ(victim_->wait(), 0);
  }

  std::unique_ptr<OtherProcess> victim_;
  std::uint16_t port_ = 0;
};

TEST_P(Strangers, WhoPassADescriptorInTheBacklogStopNobody) {
  attack([&](Attacker& attacker, const auto&) {
    const UniqueFd passed = socket_that_lingers();
    return attacker.connect(port_) && attacker.send(LinkPacket::wake, {}, passed.get()) ? 0 : 1;
  });
  expect_victim_serves_others_and_ends();
}

TEST_P(Strangers, WhoPassADescriptorWithTheRequestStopNobody) {
  attack([&](Attacker& attacker, const auto& step) {
    UniqueFd passed = socket_that_lingers();
    if (!attacker.make_memory() || !attacker.connect(port_) || !attacker.request(passed.get())) return 1;
    passed.reset(::dup(STDERR_FILENO));
    step();
    return 0;
  });
  expect_victim_serves_others_and_ends();
}

TEST_P(Strangers, WhoPassADescriptorWhileHalfOpenStopNobody) {
  attack([&](Attacker& attacker, const auto& step) {
    if (!attacker.make_memory() || !attacker.connect(port_)) return 1;
    step();
    {
      const UniqueFd passed = socket_that_lingers();
      for (int i = 0; i < 3; ++i) {
        if (!attacker.send(LinkPacket::wake, {}, passed.get())) return 2;
      }
    }
    step();
    return 0;
  });
  expect_victim_serves_others_and_ends();
}

TEST_P(Strangers, WhoPassSomethingElseInPlaceOfMemoryStopNobodyAndAreNotServedAgain) {
  const auto wanted = static_cast<unsigned>(LinkPacket::want_memory);
  attack([&](Attacker& attacker, const auto& step) {
    if (!attacker.make_memory() || !attacker.connect(port_) || !attacker.request()) return 1;
    step();
    if (attacker.hear() != wanted) return 2;
    {
      const UniqueFd passed = socket_that_lingers();
      if (!attacker.send(LinkPacket::memory, {}, passed.get())) return 3;
    }
    step();
    return attacker.hear() == 0 ? 0 : 4;
  });
  EXPECT_EQ(refusals(Refusal::descriptor), 1u);
  attack([&](Attacker& attacker, const auto& step) {
    if (!attacker.make_memory() || !attacker.connect(port_) || !attacker.request()) return 1;
    step();
    return attacker.hear() == 0 ? 0 : 2;
  });
  expect_victim_serves_others_and_ends();
}

TEST_P(Strangers, WhoPassMoreThanWasWantedStopNobody) {
  attack([&](Attacker& attacker, const auto& step) {
    if (!attacker.make_memory() || !attacker.connect(port_) || !attacker.request()) return 1;
    step();
    if (attacker.hear() == 0) return 2;
    {
      const UniqueFd passed = socket_that_lingers();
      // Behind the memory, while descriptors are let in, and unread when the victim closes.
      if (!attacker.send(LinkPacket::memory, {}, attacker.memory())) return 3;
      for (int i = 0; i < 3; ++i) {
        if (!attacker.send(LinkPacket::wake, {}, passed.get())) return 4;
      }
    }
    step();
    return 0;
  });
  expect_victim_serves_others_and_ends();
}

TEST_P(Strangers, WhoPassDescriptorsOverAnEstablishedConnectionStopNobody) {
  attack([&](Attacker& attacker, const auto& step) {
    if (!attacker.make_memory() || !attacker.connect(port_) || !attacker.request()) return 1;
    step();
    if (attacker.hear() != static_cast<unsigned>(LinkPacket::want_memory)) return 2;
    if (!attacker.send(LinkPacket::memory, {}, attacker.memory())) return 3;
    step();
    if (attacker.hear() != static_cast<unsigned>(LinkPacket::reply)) return 4;
    {
      const UniqueFd passed = socket_that_lingers();
      for (int i = 0; i < 3; ++i) static_cast<void>(attacker.send(LinkPacket::wake, {}, passed.get()));
    }
    step();
    return 0;
  });
  expect_victim_serves_others_and_ends();
}

/// A full pipe, a FIFO, an epoll descriptor that holds itself by way of another, a socket that carries descriptors.
TEST_P(Strangers, OddDescriptorsInPlaceOfMemoryStopNobody) {
  const std::pair<const char*, std::function<UniqueFd()>> odd[] = {
      {"a pipe",
       [] {
         int ends[2];
         return ::pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0 ? UniqueFd(ends[1]) : UniqueFd();
       }},
      {"a terminal or a file", [] { return UniqueFd(::dup(STDERR_FILENO)); }},
      {"a directory", [] { return UniqueFd(::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC)); }},
      {"a socket with a lingering socket in its queue",
       [] {
         int ends[2];
         if (::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0) return UniqueFd();
         soft::Link sender{UniqueFd(ends[0])};
         const UniqueFd passed = socket_that_lingers();
         return sender.send(LinkPacket::wake, {}, passed.get()) ? UniqueFd(ends[1]) : UniqueFd();
       }},
  };
  // The first that is passed ends the user's connections by ring, so each gets a victim of its own.
  for (const auto& [name, make_odd] : odd) {
    SCOPED_TRACE(name);
    SetUp();
    // Clang 14 takes no structured binding into a lambda.
    attack([&make = make_odd, this](Attacker& attacker, const auto& step) {
      if (!attacker.make_memory() || !attacker.connect(port_) || !attacker.request()) return 1;
      step();
      if (attacker.hear() == 0) return 2;
      {
        const UniqueFd passed = make();
        if (!passed || !attacker.send(LinkPacket::memory, {}, passed.get())) return 3;
      }
      step();
      return 0;
    });
    expect_victim_serves_others_and_ends();
  }
}

TEST_P(Strangers, WhoListenAndPassDescriptorsInTheReplyStopNoClient) {
  OtherProcess server(kBob, [&](Channel parent) {
    Attacker self;
    parent.tell(self.listen());
    if (!self.accept() || !self.make_memory()) return 1;
    if (self.hear() != static_cast<unsigned>(LinkPacket::request)) return 2;
    {
      const UniqueFd passed = socket_that_lingers();
      if (!self.reply(passed.get())) return 3;
    }
    parent.tell(0);
    // The client asks for the memory that the reply names, or has had enough.
    if (self.hear() == static_cast<unsigned>(LinkPacket::want_memory)) {
      const UniqueFd passed = socket_that_lingers();
      if (!self.send(LinkPacket::memory, {}, passed.get())) return 4;
    }
    parent.tell(0);
    [[maybe_unused]] const auto end = parent.hear();
    return 0;
  });
  const auto port = server.channel().hear();
  ASSERT_TRUE(port);
  ASSERT_TRUE(tell_victim({connect_to, *port}));
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(server.channel().hear());
    ASSERT_TRUE(tell_victim({look_around}));
  }
  server.channel().hang_up();
  EXPECT_EQ(server.wait(), 0);
  expect_victim_serves_others_and_ends();
}

TEST_P(Strangers, WhoPassTheRightMemoryAreServed) {
  attack([&](Attacker& attacker, const auto& step) {
    if (!attacker.make_memory() || !attacker.connect(port_) || !attacker.request()) return 1;
    step();
    if (attacker.hear() != static_cast<unsigned>(LinkPacket::want_memory)) return 2;
    if (!attacker.send(LinkPacket::memory, {}, attacker.memory())) return 3;
    step();
    return attacker.hear() == static_cast<unsigned>(LinkPacket::reply) ? 0 : 4;
  });
  EXPECT_EQ(refusals(Refusal::descriptor), 0u);
}

TEST_P(Strangers, WhoOfferASegmentThatWasKeptForAnotherProcessAreRefused) {
  attack([&](Attacker& attacker, const auto& step) {
    if (!attacker.make_memory() || !attacker.connect(port_)) return 1;
    attacker.offer().flags |= soft::kOfferKeptSegment;
    if (!attacker.request()) return 2;
    step();
    return attacker.hear() == 0 ? 0 : 3;
  });
}

TEST_P(Strangers, GetNoMoreMemoryThanAConnectionNeedsAndABudget) {
  const auto offer = [&](std::uint64_t more, bool taken) {
    return [=, this](Attacker& attacker, const auto& step) {
      if (!attacker.make_memory(more) || !attacker.connect(port_) || !attacker.request()) return 1;
      step();
      if (attacker.hear() != static_cast<unsigned>(LinkPacket::want_memory)) return 2;
      if (!attacker.send(LinkPacket::memory, {}, attacker.memory())) return 3;
      step();
      return attacker.hear() == (taken ? static_cast<unsigned>(LinkPacket::reply) : 0u) ? 0 : 4;
    };
  };
  attack(offer(0, true));
  attack(offer(std::uint64_t{1} << 39, false));  // more would not fit beside ThreadSanitizer
  attack(offer(std::uint64_t{64} << 20, false));
  EXPECT_EQ(refusals(Refusal::segment_size), 2u);
  // 15 MiB more than needed, four times; the fifth is more than the user may have.
  for (int i = 0; i < 4; ++i) attack(offer(std::uint64_t{15} << 20, true));
  attack(offer(std::uint64_t{15} << 20, false));
  EXPECT_EQ(refusals(Refusal::user_budget), 1u);
  attack(offer(0, true));
}

INSTANTIATE_TEST_SUITE_P(Kernels, Strangers, ::testing::Values(Kernel::keeps_descriptors_out, Kernel::old),
                         [](const auto& kernel) {
                           return kernel.param == Kernel::old ? "WithoutPassrights" : "WithPassrights";
                         });

TEST(UserBudget, IsGivenBackAtTheEndOfTheConnection) {
  constexpr uid_t kUser = 70'001;
  std::vector<soft::UserCharge> charges;
  const auto take = [&](std::uint64_t bytes) {
    auto charge = soft::UserCharge::take(kUser, bytes);
    if (charge) charges.push_back(*std::move(charge));
    return charge.has_value();
  };
  EXPECT_FALSE(take(soft::kMaxExtraBytes + 1));
  for (std::uint64_t i = 0; i < soft::kMaxExtraBytesOfUser / soft::kMaxExtraBytes; ++i)
    EXPECT_TRUE(take(soft::kMaxExtraBytes));
  EXPECT_FALSE(take(1));
  EXPECT_TRUE(soft::UserCharge::take(kUser + 1, 1)) << "another user's";
  charges.clear();
  EXPECT_TRUE(take(soft::kMaxExtraBytes));
}

TEST(Distrust, IsForOneUserAndBounded) {
  constexpr uid_t kFirst = 80'000;
  soft::distrust(kFirst);
  EXPECT_TRUE(soft::is_distrusted(kFirst));
  EXPECT_FALSE(soft::is_distrusted(kFirst + 1));
  for (uid_t i = 1; i <= soft::kMaxDistrusted; ++i) soft::distrust(kFirst + i);
  EXPECT_TRUE(soft::is_distrusted(kFirst + soft::kMaxDistrusted));
  EXPECT_FALSE(soft::is_distrusted(kFirst));
  // For a while: others may have the number, too.
  const Nanos now = monotonic_now();
  soft::distrust(kFirst, now);
  EXPECT_TRUE(soft::is_distrusted(kFirst, now + soft::kDistrusted - Nanos(1)));
  EXPECT_FALSE(soft::is_distrusted(kFirst, now + soft::kDistrusted));
}

}  // namespace
}  // namespace ringsock::tests
