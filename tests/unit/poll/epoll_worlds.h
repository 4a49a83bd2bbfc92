// The same story told three times: by the kernel alone, by our epoll set over kernel sockets, by our set over
// endpoints.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/unique_fd.h"
#include "core/poll/epoll_set.h"
#include "core/poll/wait.h"
#include "core/runtime/fd_table.h"
#include "tests/fakes/fake_endpoint.h"

namespace ringsock::runtime {

/// A connected stream, as epoll sees it: writable from the start.
class Stream {
 public:
  virtual ~Stream() = default;
  [[nodiscard]] virtual int fd() const = 0;
  virtual void data_arrives() = 0;
  virtual void read_everything() = 0;
  virtual void peer_shuts_down() = 0;
  virtual void connection_dies() = 0;
  virtual void close() = 0;
};

class KernelStream final : public Stream {
 public:
  KernelStream() {
    std::array<int, 2> fd{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fd.data()), 0);
    mine_.reset(fd[0]);
    peer_.reset(fd[1]);
  }
  [[nodiscard]] int fd() const override { return mine_.get(); }
  void data_arrives() override { EXPECT_TRUE(::write(peer_.get(), "x", 1) == 1 || errno == EAGAIN); }
  void read_everything() override {
    std::array<char, 256> sink;
    while (::read(mine_.get(), sink.data(), sink.size()) > 0) {
    }
  }
  void peer_shuts_down() override { EXPECT_EQ(::shutdown(peer_.get(), SHUT_WR), 0); }
  void connection_dies() override { EXPECT_EQ(::shutdown(peer_.get(), SHUT_RDWR), 0); }
  void close() override { mine_.reset(); }

 private:
  UniqueFd mine_, peer_;
};

class FakeStream final : public Stream {
 public:
  FakeStream() { fake_->become(EPOLLOUT); }
  [[nodiscard]] int fd() const override { return fake_.fd(); }
  void data_arrives() override { fake_->become(EPOLLIN); }
  void read_everything() override { fake_->lose(EPOLLIN); }
  void peer_shuts_down() override { fake_->become(EPOLLIN | EPOLLRDHUP); }
  void connection_dies() override { fake_->become(EPOLLIN | EPOLLRDHUP | EPOLLHUP); }
  void close() override { fake_.close(); }
  fakes::FakeEndpoint& endpoint() { return *fake_; }

 private:
  fakes::OpenFake fake_;
};

/// What epoll_wait(2) reported: events and data.
using Report = std::vector<std::pair<std::uint32_t, std::uint64_t>>;

/// The provider of epoll sets and streams.
class World {
 public:
  virtual ~World() = default;
  virtual std::unique_ptr<Stream> open_stream() = 0;
  /// A set's descriptor, closed by the caller with close_set().
  virtual int create_set() = 0;
  virtual void close_set(int set) = 0;
  /// @return 0 or errno.
  virtual int control(int set, int op, int fd, std::uint32_t events, std::uint64_t data) = 0;
  /// @return how many, or the negative errno.
  virtual int wait(int set, epoll_event* events, int max_events, Nanos timeout, const sigset_t* mask) = 0;

  int add(int set, int fd, std::uint32_t events, std::uint64_t data) {
    return control(set, EPOLL_CTL_ADD, fd, events, data);
  }
  int modify(int set, int fd, std::uint32_t events, std::uint64_t data) {
    return control(set, EPOLL_CTL_MOD, fd, events, data);
  }
  int remove(int set, int fd) { return control(set, EPOLL_CTL_DEL, fd, 0, 0); }
  Report wait(int set, Nanos timeout = Nanos::zero(), int max_events = 16) {
    std::vector<epoll_event> events(static_cast<std::size_t>(max_events));
    const int count = wait(set, events.data(), max_events, timeout, nullptr);
    EXPECT_GE(count, 0);
    Report report;
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<std::size_t>(i)];
      // By value: the structure is packed.
      report.emplace_back(std::uint32_t{event.events}, std::uint64_t{event.data.u64});
    }
    return report;
  }
};

class KernelWorld final : public World {
 public:
  std::unique_ptr<Stream> open_stream() override { return std::make_unique<KernelStream>(); }
  int create_set() override { return ::epoll_create1(EPOLL_CLOEXEC); }
  void close_set(int set) override { ::close(set); }
  int control(int set, int op, int fd, std::uint32_t events, std::uint64_t data) override {
    epoll_event event{events, {.u64 = data}};
    return ::epoll_ctl(set, op, fd, &event) == 0 ? 0 : errno;
  }
  using World::wait;
  int wait(int set, epoll_event* events, int max_events, Nanos timeout, const sigset_t* mask) override {
    const timespec left = to_timespec(timeout);
    const int count = ::epoll_pwait2(set, events, max_events, timeout == Nanos::max() ? nullptr : &left, mask);
    return count >= 0 ? count : -errno;
  }
};

class OurWorld : public World {
 public:
  int create_set() override {
    const Result<int> set = EpollSet::create(EPOLL_CLOEXEC);
    EXPECT_TRUE(set);
    return *set;
  }
  void close_set(int set) override {
    const Ref gone = fd_table().remove(set);
    gone->retire();
    ::close(set);
  }
  int control(int set, int op, int fd, std::uint32_t events, std::uint64_t data) override {
    const epoll_event event{events, {.u64 = data}};
    const Status done = epoll_control(set, op, fd, &event);
    return done ? 0 : done.error().code;
  }
  using World::wait;
  int wait(int set, epoll_event* events, int max_events, Nanos timeout, const sigset_t* mask) override {
    const Result<int> count = epoll_wait_for(set, events, max_events, timeout, mask);
    return count ? *count : -count.error().code;
  }
};

class OurWorldOfKernelStreams final : public OurWorld {
 public:
  std::unique_ptr<Stream> open_stream() override { return std::make_unique<KernelStream>(); }
};

class OurWorldOfEndpoints final : public OurWorld {
 public:
  std::unique_ptr<Stream> open_stream() override { return std::make_unique<FakeStream>(); }
};

/// A set that is closed at the end.
class OpenSet {
 public:
  explicit OpenSet(World& world) : world_(world), fd_(world.create_set()) {}
  OpenSet(const OpenSet&) = delete;
  OpenSet& operator=(const OpenSet&) = delete;
  ~OpenSet() { world_.close_set(fd_); }
  operator int() const { return fd_; }

 private:
  World& world_;
  int fd_;
};

enum class WorldKind { kernel, our_set_of_kernel_streams, our_set_of_endpoints };

inline std::unique_ptr<World> make_world(WorldKind kind) {
  switch (kind) {
    case WorldKind::kernel: return std::make_unique<KernelWorld>();
    case WorldKind::our_set_of_kernel_streams: return std::make_unique<OurWorldOfKernelStreams>();
    case WorldKind::our_set_of_endpoints: break;
  }
  return std::make_unique<OurWorldOfEndpoints>();
}

inline std::string world_name(const ::testing::TestParamInfo<WorldKind>& info) {
  constexpr std::array<const char*, 3> kNames{"Kernel", "OurSetOfKernelStreams", "OurSetOfEndpoints"};
  return kNames[static_cast<std::size_t>(info.param)];
}

}  // namespace ringsock::runtime
