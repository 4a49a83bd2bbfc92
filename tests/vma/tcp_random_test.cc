// The same random calls on a connection of the kernel's and on one that a ring carries (VMA_TCP=on): a program sees the
// same of both. The calls come from a seed, which a failure prints; RINGSOCK_SEED=N plays that one alone.
#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/uio.h>

#include <chrono>
#include <csignal>
#include <random>
#include <set>
#include <sstream>

#include "tests/support/sanitizers.h"
#include "tests/vma/tcp_world.h"

namespace ringsock::vma_tests {
namespace {

constexpr const char* kHere = "10.9.0.1";
constexpr const char* kThere = "10.9.0.2";

/// A program with a socket here whose calls are told with their answers. The other end is the kernel's. Before the next
/// call what the last one has caused is waited for, so that the answers depend on nothing else.
class Story {
 public:
  Story(std::uint32_t seed, Calls calls) : random_(seed), calls_(calls) {
    const bool connects = below(2) == 0;
    // Where connections have been short, the kernel has the next one until it proves to last.
    const bool is_on_trial = below(2) == 0;
    const Listener listener = new_listener(connects, calls);
    for (int i = 0; is_on_trial && i < 3; ++i) begin(listener, connects);
    begin(listener, connects);
    EXPECT_EQ(here_.is_on_ring(), calls == Calls::librarys && !is_on_trial);
  }
  std::string play() {
    for (int calls = 5 + static_cast<int>(below(60)); calls > 0; --calls) step();
    return told_.str();
  }

 private:
  /// Returns a listener at a port of which nothing is remembered: another story may have had short connections there.
  static Listener new_listener(bool connects, Calls calls) {
    static std::set<std::pair<bool, std::uint16_t>> used;
    for (;;) {
      Listener out = connects ? over_there([] { return Listener(kThere, Calls::kernels); }) : Listener(kHere, calls);
      if (used.emplace(connects, out.name().port()).second) return out;
    }
  }
  /// A new connection takes the place of the last one.
  void begin(const Listener& listener, bool connects) {
    here_.close();
    there_.close();
    if (connects) {
      here_ = connected_to(listener.name(), calls_);
      there_ = over_there([&] { return listener.accept(); });
    } else {
      there_ = over_there([&] { return connected_to(listener.name(), Calls::kernels); });
      here_ = listener.accept();
    }
  }
  std::uint32_t below(std::uint32_t limit) { return static_cast<std::uint32_t>(random_() % limit); }
  template <class Libcs, class... Words>
  long call(Libcs libcs, long number, Words... words) const {
    return calls_ == Calls::librarys ? static_cast<long>(libcs(words...)) : raw_syscall(number, words...);
  }
  /// Waits for what must happen, without end if it does not: ten seconds are a difference to be told.
  template <class Done>
  void wait_until(const char* what, Done done) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!done()) {
      if (std::chrono::steady_clock::now() > limit) {
        told_ << "(" << what << " does not come)\n";
        return;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  std::ostream& tell(const char* name, long answer) {
    if (answer >= 0) return told_ << name << " = " << answer << '\n';
    return told_ << name << ": " << std::strerror(errno) << '\n';
  }

  void step() {
    switch (below(16)) {
      case 0:
      case 1:
      case 2: return send_here();
      case 3:
      case 4:
      case 5: return send_there();
      case 6:
      case 7:
      case 8:
      case 9: return receive_here();
      case 10: return receive_there();
      case 11: return look();
      case 12: return ask();
      case 13: return below(3) == 0 ? urgent() : set();
      case 14: return below(6) == 0 ? end_there() : look();
      default: return below(6) == 0 ? end_here() : ask();
    }
  }
  std::string letters(std::size_t bytes) {
    std::string out(bytes, '\0');
    for (char& one : out) one = static_cast<char>('a' + below(26));
    return out;
  }
  void send_here() {
    const std::string data = letters(1 + below(below(2) == 0 ? 100 : 5000));
    const std::uint32_t way = below(4);
    if (to_there_ + data.size() > 30'000) return;  // it would wait for a reader
    iovec parts[2] = {{const_cast<char*>(data.data()), data.size() / 2},
                      {const_cast<char*>(data.data()) + data.size() / 2, data.size() - data.size() / 2}};
    const msghdr message{nullptr, 0, parts, 2, nullptr, 0, 0};
    long answer = 0;
    if (way == 0)
      answer = call(::write, SYS_write, here_.fd(), static_cast<const void*>(data.data()), data.size());
    else if (way == 1)
      answer = call(::writev, SYS_writev, here_.fd(), static_cast<const iovec*>(parts), 2);
    else if (way == 2)
      answer = call(::sendmsg, SYS_sendmsg, here_.fd(), &message, MSG_NOSIGNAL);
    else
      answer = here_.send_some(data.data(), data.size());
    tell("send", answer);
    if (answer <= 0) return;
    if (there_.fd() < 0) return wait_until("a reset", [&] { return (events() & (POLLERR | POLLHUP)) != 0; });
    to_there_ += static_cast<std::size_t>(answer);
    if (!there_reads_not_) wait_until("all that was sent", [&] { return waiting(there_.fd()) == to_there_; });
  }
  /// An urgent byte comes between others. Only when nothing waits: how many bytes there are is not what FIONREAD tells.
  void urgent() {
    if (there_.fd() < 0 || there_has_ended_ || has_ended_reading_ || to_here_ != 0) return;
    if (there_.send("abc") != 3 || there_.send_some("d", 1, MSG_OOB | MSG_NOSIGNAL) != 1) return;
    wait_until("an urgent byte", [&] { return (events() & POLLPRI) != 0 && unread() == 3; });
    look();
    at_mark();
    read_some(MSG_DONTWAIT);
    at_mark();
    read_some(MSG_OOB);
    read_some(MSG_OOB);
    look();
    if (there_.send("ef") != 2) return;
    wait_until("what follows it", [&] {
      char one = 0;
      return here_.receive_some(&one, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
    });
    read_some(MSG_DONTWAIT);
    at_mark();
  }
  void at_mark() {
    int is_at = 0;
    tell("SIOCATMARK", calls_ == Calls::librarys ? ::ioctl(here_.fd(), SIOCATMARK, &is_at)
                                                 : raw_syscall(SYS_ioctl, here_.fd(), SIOCATMARK, &is_at))
        << is_at << '\n';
  }
  void read_some(int flags) {
    char room[10]{};
    tell("recv", here_.receive_some(room, sizeof room, flags)) << room << '\n';
  }
  void send_there() {
    const std::string data = letters(1 + below(below(2) == 0 ? 100 : 5000));
    if (there_.fd() < 0 || there_has_ended_ || has_ended_reading_ || to_here_ + data.size() > 30'000) return;
    if (there_.send(data) != data.size()) return;
    to_here_ += data.size();
    wait_until("all that was sent here", [&] { return unread() == to_here_; });
  }
  void receive_here() {
    constexpr int kFlags[] = {0, MSG_PEEK, MSG_WAITALL, MSG_TRUNC, MSG_DONTWAIT, MSG_PEEK | MSG_DONTWAIT};
    int flags = kFlags[below(6)];
    std::string room(1 + below(below(2) == 0 ? 100 : 8000), '\0');
    const bool by_message = below(3) == 0;
    const bool would_wait = to_here_ < ((flags & MSG_WAITALL) != 0 ? room.size() : 1);
    if (would_wait && !is_over()) flags = MSG_DONTWAIT;
    iovec parts[2] = {{room.data(), room.size() / 3}, {room.data() + room.size() / 3, room.size() - room.size() / 3}};
    msghdr message{nullptr, 0, parts, 2, nullptr, 0, -1};
    const long got = by_message ? call(::recvmsg, SYS_recvmsg, here_.fd(), &message, flags)
                                : here_.receive_some(room.data(), room.size(), flags);
    tell("recv", got) << std::hash<std::string>{}(
        got > 0 && (flags & MSG_TRUNC) == 0 ? room.substr(0, static_cast<std::size_t>(got)) : "");
    if (by_message && got >= 0) told_ << " flags " << message.msg_flags;
    told_ << '\n';
    if (got > 0 && (flags & MSG_PEEK) == 0) to_here_ -= std::min(to_here_, static_cast<std::size_t>(got));
  }
  void receive_there() {
    if (there_.fd() < 0 || to_there_ == 0) return;
    const std::string got = there_.receive(1 + below(static_cast<std::uint32_t>(to_there_)));
    told_ << "there " << got.size() << ' ' << std::hash<std::string>{}(got) << '\n';
    to_there_ -= std::min(to_there_, got.size());
  }
  [[nodiscard]] short events() const {
    pollfd one{here_.fd(), POLLIN | POLLOUT | POLLPRI | POLLRDHUP, 0};
    call(::poll, SYS_poll, &one, static_cast<nfds_t>(1), 0);
    return one.revents;
  }
  void look() { told_ << "poll " << events() << '\n'; }
  [[nodiscard]] std::size_t unread() const {
    int bytes = 0;
    const long done = calls_ == Calls::librarys ? ::ioctl(here_.fd(), FIONREAD, &bytes)
                                                : raw_syscall(SYS_ioctl, here_.fd(), FIONREAD, &bytes);
    return done == 0 ? static_cast<std::size_t>(bytes) : SIZE_MAX;
  }
  static std::size_t waiting(int fd) {
    int bytes = 0;
    raw_syscall(SYS_ioctl, fd, FIONREAD, &bytes);
    return static_cast<std::size_t>(bytes);
  }
  void ask() {
    int value = 0;
    socklen_t length = sizeof value;
    constexpr std::pair<int, int> kAsked[] = {{SOL_SOCKET, SO_ERROR},      {SOL_SOCKET, SO_TYPE},
                                              {SOL_SOCKET, SO_KEEPALIVE},  {SOL_SOCKET, SO_RCVLOWAT},
                                              {SOL_SOCKET, SO_DOMAIN},     {SOL_SOCKET, SO_ACCEPTCONN},
                                              {IPPROTO_TCP, TCP_NODELAY},  {IPPROTO_TCP, TCP_CORK},
                                              {IPPROTO_TCP, TCP_KEEPIDLE}, {IPPROTO_TCP, TCP_USER_TIMEOUT}};
    const auto [level, name] = kAsked[below(10)];
    if (below(4) == 0) {
      Address peer;
      peer.length() = sizeof(sockaddr_storage);
      tell("getpeername", call(::getpeername, SYS_getpeername, here_.fd(), peer.get(), &peer.length()));
      return;
    }
    if (below(4) == 0) {
      told_ << "FIONREAD " << unread() << '\n';
      return;
    }
    if (below(4) == 0) {
      if (there_.fd() < 0) return;  // after a reset the kernel counts bytes that never leave
      tell("SIOCOUTQNSD", calls_ == Calls::librarys ? ::ioctl(here_.fd(), SIOCOUTQNSD, &value)
                                                    : raw_syscall(SYS_ioctl, here_.fd(), SIOCOUTQNSD, &value))
          << value << '\n';
      return;
    }
    const long answer =
        call(::getsockopt, SYS_getsockopt, here_.fd(), level, name, static_cast<void*>(&value), &length);
    tell("getsockopt", answer) << level << ' ' << name << ' ' << value << '\n';
  }
  void set() {
    const int value = static_cast<int>(below(2));
    constexpr std::pair<int, int> kSet[] = {
        {SOL_SOCKET, SO_KEEPALIVE}, {IPPROTO_TCP, TCP_NODELAY}, {IPPROTO_TCP, TCP_QUICKACK}};
    const auto [level, name] = kSet[below(3)];
    if (below(10) == 0) {  // rings do not have it: the connection goes back with what is in its queues
      const int clamp = 60'000;
      tell("setsockopt", call(::setsockopt, SYS_setsockopt, here_.fd(), IPPROTO_TCP, TCP_WINDOW_CLAMP,
                              static_cast<const void*>(&clamp), static_cast<socklen_t>(sizeof clamp)));
      return;
    }
    tell("setsockopt", call(::setsockopt, SYS_setsockopt, here_.fd(), level, name, static_cast<const void*>(&value),
                            static_cast<socklen_t>(sizeof value)));
  }
  [[nodiscard]] bool is_over() const { return there_has_ended_ || there_.fd() < 0 || has_ended_reading_; }
  void end_there() {
    if (there_.fd() < 0) return;
    const std::uint32_t way = below(3);
    told_ << "there ends, " << way << '\n';
    if (way == 0) {
      there_has_ended_ = true;
      there_.shut_down(SHUT_WR);
    } else {
      if (way == 1) (void)there_.receive(to_there_);  // otherwise what is unread makes it a reset
      there_.close();
      there_reads_not_ = true;
    }
    wait_until("the end", [&] { return (events() & (POLLRDHUP | POLLHUP | POLLERR)) != 0; });
  }
  void end_here() {
    constexpr int kHow[] = {SHUT_WR, SHUT_WR, SHUT_RDWR, SHUT_RD};
    const int how = kHow[below(4)];
    tell("shutdown", call(::shutdown, SYS_shutdown, here_.fd(), how));
    has_ended_reading_ = has_ended_reading_ || how != SHUT_WR;
  }

  std::mt19937 random_;
  Calls calls_;
  Stream here_, there_;
  std::ostringstream told_;
  std::size_t to_here_ = 0, to_there_ = 0;  ///< bytes that nobody has read
  bool has_ended_reading_ = false, there_has_ended_ = false, there_reads_not_ = false;
};

void compare(std::uint32_t seed) {
  SCOPED_TRACE("RINGSOCK_SEED=" + std::to_string(seed));
  const std::string kernels = Story(seed, Calls::kernels).play();
  const std::string rings = Story(seed, Calls::librarys).play();
  EXPECT_EQ(rings, kernels);
}

TEST(TcpRandomCalls, AProgramSeesTheSameOfARingAsOfTheKernel) {
  std::signal(SIGPIPE, SIG_IGN);
  if (const char* seed = std::getenv("RINGSOCK_SEED"))
    return compare(static_cast<std::uint32_t>(std::strtoul(seed, nullptr, 10)));
  const std::uint32_t all = support::kHasAddressSanitizer || support::kHasThreadSanitizer ? 30 : 200;
  for (std::uint32_t seed = 1; seed <= all && !testing::Test::HasFailure(); ++seed) compare(seed);
}

}  // namespace
}  // namespace ringsock::vma_tests
