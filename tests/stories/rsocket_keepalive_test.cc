// SO_KEEPALIVE: the service thread looks after a connection on which the application makes no calls.
#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <rdma/rsocket.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "core/base/libc_calls.h"
#include "tests/stories/rsocket_pair.h"
#include "tests/support/sanitizers.h"
#include "tests/support/thread_status.h"

namespace ringsock::stories {
namespace {

void run_on(pid_t thread, int cpu, int policy) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  EXPECT_EQ(::sched_setaffinity(thread, sizeof set, &set), 0);
  const sched_param none{};
  EXPECT_EQ(::sched_setscheduler(thread, policy, &none), 0);
}

/// While it exists, the service thread reads from the link of a connection only once the application's thread, which
/// made this, sleeps. From then on it runs when that thread does not: what wakes the application lets it go first.
class ApplicationGoesFirst {
 public:
  explicit ApplicationGoesFirst(int link) : recvmsg_(libc_calls.recvmsg) {
    link_ = link;
    application_ = ::gettid();
    cpu_ = ::sched_getcpu();
    ::sched_getaffinity(0, sizeof allowed_, &allowed_);
    run_on(application_, cpu_, SCHED_OTHER);
    libc_calls.recvmsg = [](int fd, msghdr* message, int flags) {
      if (fd == link_ && ::gettid() != application_) wait_for_application();
      return ::recvmsg(fd, message, flags);
    };
  }
  ApplicationGoesFirst(const ApplicationGoesFirst&) = delete;
  ApplicationGoesFirst& operator=(const ApplicationGoesFirst&) = delete;
  ~ApplicationGoesFirst() {
    libc_calls.recvmsg = recvmsg_;
    const sched_param none{};
    EXPECT_EQ(::sched_setscheduler(service_, SCHED_OTHER, &none), 0);
    for (const pid_t thread : {service_.load(), application_}) ::sched_setaffinity(thread, sizeof allowed_, &allowed_);
  }
  static void wait_for_read() {
    while (service_ == 0) ::sched_yield();
  }

 private:
  static void wait_for_application() {
    service_ = ::gettid();
    support::falls_asleep(application_);
    run_on(service_, cpu_, SCHED_IDLE);
  }

  static inline std::atomic<pid_t> service_{0};
  static inline pid_t application_ = 0;
  static inline int link_ = -1, cpu_ = 0;
  cpu_set_t allowed_{};
  ssize_t (*recvmsg_)(int, msghdr*, int);
};

TEST(Keepalive, MayBeSetAgainWhileItFindsThePeerGone) {
  if (std::getenv("RINGSOCK_TEST_SOFT_LIKE") != nullptr) GTEST_SKIP() << "the link is read elsewhere";
  if (support::kHasThreadSanitizer) GTEST_SKIP() << "replaces a function that the service thread calls";
  Pair pair;
  set_int(pair.alice, IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set_int(pair.alice, SOL_SOCKET, SO_KEEPALIVE, 1);
  pair.alice.say("unread");
  ::alarm(60);  // a setsockopt(2) that never returns has failed
  {
    const ApplicationGoesFirst order(pair.alice);
    pair.bob.close();
    ApplicationGoesFirst::wait_for_read();
    set_int(pair.alice, SOL_SOCKET, SO_KEEPALIVE, 1);
  }
  ::alarm(0);
  EXPECT_EQ(pair.alice.hear(), "<ECONNRESET>");
}

}  // namespace
}  // namespace ringsock::stories
