// A socket's address on several devices at once.
#include "core/verbs/many_devices_id.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <deque>
#include <set>

#include "tests/fakes/fake_device.h"

namespace ringsock::verbs {
namespace {

const SocketAddress kAnyPort = SocketAddress::wildcard(AF_INET, 0);
const SocketAddress kPort80 = SocketAddress::wildcard(AF_INET, 80);

class StubDevice;

/// An endpoint that notes what is done to it.
class StubId final : public ConnectionId {
 public:
  explicit StubId(StubDevice& device);
  ~StubId() override { ::close(event_fd_); }
  Device& device() override;
  Status bind(const SocketAddress& address) override;
  void set_reuse_address(bool on) override { reuse = on; }
  void set_v6_only(bool) override {}
  void set_type_of_service(std::uint8_t tos) override { type_of_service = tos; }
  Status listen(int) override { return listen_error == 0 ? ok() : Status(Error{listen_error, "stub"}); }
  Status resolve_addr(const SocketAddress&, Nanos) override {
    resolving = true;
    return ok();
  }
  Status resolve_route(Nanos) override { return ok(); }
  void use_route(std::span<const std::byte> path_data) override { route_bytes = path_data.size(); }
  Result<ConnectionQp> create_qp(ibv_pd&, ibv_qp_init_attr&, ReceiveBytes) override { return Error{EINVAL, "stub"}; }
  Status connect(const ConnectionParameters&) override { return ok(); }
  Status accept(const ConnectionParameters&) override { return ok(); }
  Status reject(std::span<const std::byte>) override { return ok(); }
  Status disconnect() override { return ok(); }
  Result<CmEvent> next_event() override {
    if (clients == 0) return Error{EAGAIN, "stub"};
    --clients;
    std::uint64_t taken = 0;
    EXPECT_EQ(::read(event_fd_, &taken, sizeof taken), static_cast<ssize_t>(sizeof taken));
    CmEvent event;
    event.type = CmEventType::connect_request;
    return event;
  }
  [[nodiscard]] int event_fd() const override { return event_fd_; }
  [[nodiscard]] std::optional<Nanos> next_deadline() const override { return deadline; }
  [[nodiscard]] SocketAddress local_address() const override { return bound; }
  [[nodiscard]] SocketAddress peer_address() const override { return {}; }

  void client_comes() {
    ++clients;
    const std::uint64_t one = 1;
    ASSERT_EQ(::write(event_fd_, &one, sizeof one), static_cast<ssize_t>(sizeof one));
  }

  bool reuse = false;
  std::uint8_t type_of_service = 0;
  bool resolving = false;
  int listen_error = 0;
  std::size_t route_bytes = 0;
  int clients = 0;
  std::optional<Nanos> deadline;
  SocketAddress bound;

 private:
  StubDevice& device_;
  const int event_fd_ = ::eventfd(0, EFD_NONBLOCK | EFD_SEMAPHORE | EFD_CLOEXEC);
};

class StubDevice final : public fakes::FakeDevice {
 public:
  StubDevice(const char* name, bool embedded)
      : FakeDevice(name, {.survives_fork = embedded, .is_embedded = embedded}) {}
  [[nodiscard]] bool may_have_listener(PortSpace, const SocketAddress&) override {
    return !traits().is_embedded || has_listener;
  }
  Result<std::unique_ptr<ConnectionId>> create_id(PortSpace) override {
    if (create_error != 0) return Error{create_error, "stub"};
    ++ids_made;
    auto id = std::make_unique<StubId>(*this);
    latest = id.get();
    return std::unique_ptr<ConnectionId>(std::move(id));
  }

  StubId* latest = nullptr;
  std::set<std::uint16_t> taken_ports;
  std::uint16_t next_port = 5000;
  int bind_error = 0;
  int create_error = 0;
  int ids_made = 0;
  bool has_listener = false;
};

StubId::StubId(StubDevice& device) : device_(device) {}
Device& StubId::device() { return device_; }
Status StubId::bind(const SocketAddress& address) {
  if (device_.bind_error != 0) return Error{device_.bind_error, "stub"};
  SocketAddress wanted = address;
  if (wanted.port() == 0) wanted.set_port(device_.next_port++);
  if (device_.taken_ports.contains(wanted.port())) return Error{EADDRINUSE, "stub"};
  bound = wanted;
  return ok();
}

class StubProvider final : public DeviceProvider {
 public:
  StubProvider(DeviceKind kind, StubDevice*& device) : kind_(kind), device_(device) {}
  [[nodiscard]] const char* name() const override { return "stub"; }
  [[nodiscard]] DeviceKind kind() const override { return kind_; }
  bool reaches(const SocketAddress& address) override { return kind_ == DeviceKind::soft || !address.is_loopback(); }
  Result<std::unique_ptr<Device>> open() override {
    auto device = std::make_unique<StubDevice>("stub", kind_ == DeviceKind::soft);
    device_ = device.get();
    return std::unique_ptr<Device>(std::move(device));
  }

 private:
  const DeviceKind kind_;
  StubDevice*& device_;
};

class ManyDevicesIdTest : public testing::Test {
 protected:
  static std::vector<std::unique_ptr<DeviceProvider>> providers(StubDevice*& card, StubDevice*& memory) {
    std::vector<std::unique_ptr<DeviceProvider>> all;
    all.push_back(std::make_unique<StubProvider>(DeviceKind::rdma, card));
    all.push_back(std::make_unique<StubProvider>(DeviceKind::soft, memory));
    return all;
  }
  static bool is_readable(int fd) {
    pollfd entry{fd, POLLIN, 0};
    return ::poll(&entry, 1, 0) == 1;
  }

  StubDevice* card_ = nullptr;
  StubDevice* memory_ = nullptr;
  DeviceRegistry registry_{providers(card_, memory_)};
  std::unique_ptr<ConnectionId> id_ = *make_id_for_binding(registry_, kAnyPort, PortSpace::tcp);
};

TEST_F(ManyDevicesIdTest, ThePortThatTheEmbeddedDeviceGetsIsTheOtherOnesToo) {
  id_->set_reuse_address(true);
  id_->set_type_of_service(8);
  ASSERT_TRUE(id_->bind(kAnyPort));
  EXPECT_EQ(memory_->latest->bound.port(), 5000);
  EXPECT_EQ(card_->latest->bound.port(), 5000);
  EXPECT_EQ(id_->local_address().port(), 5000);
  EXPECT_TRUE(card_->latest->reuse && memory_->latest->reuse);
  EXPECT_EQ(card_->latest->type_of_service, 8);
  EXPECT_EQ(card_->ids_made, 1);
  EXPECT_EQ(memory_->ids_made, 1);
}

TEST_F(ManyDevicesIdTest, AChosenPortThatIsTakenElsewhereIsChosenAnew) {
  card_->taken_ports = {5000, 5001};
  ASSERT_TRUE(id_->bind(kAnyPort));
  EXPECT_EQ(id_->local_address().port(), 5002);
  EXPECT_EQ(card_->latest->bound.port(), 5002);
}

TEST_F(ManyDevicesIdTest, IdsAreMadeAnewOnlyAfterAnAttemptThatFailed) {
  card_->taken_ports = {5000};
  ASSERT_TRUE(id_->bind(kAnyPort));
  EXPECT_EQ(card_->ids_made, 2);
  EXPECT_EQ(memory_->ids_made, 2);
}

TEST_F(ManyDevicesIdTest, WhereNoDeviceCanMakeOneThereIsNone) {
  card_->create_error = ENOMEM;
  EXPECT_TRUE(make_id_for_binding(registry_, kAnyPort, PortSpace::tcp));
  memory_->create_error = card_->create_error = EMFILE;
  EXPECT_EQ(make_id_for_binding(registry_, kAnyPort, PortSpace::tcp).error().code, EMFILE);
}

TEST_F(ManyDevicesIdTest, AWantedPortThatIsTakenAnywhereIsTaken) {
  card_->taken_ports = {80};
  EXPECT_EQ(id_->bind(kPort80).error().code, EADDRINUSE);
}

TEST_F(ManyDevicesIdTest, ADeviceWithoutTheAddressIsDoneWithout) {
  card_->bind_error = ENODEV;
  ASSERT_TRUE(id_->bind(kPort80));
  ASSERT_TRUE(id_->listen(5));
  EXPECT_EQ(id_->event_fd(), memory_->latest->event_fd());
}

TEST_F(ManyDevicesIdTest, WithoutTheOneThatChoosesThePortTheNextOneDoes) {
  memory_->bind_error = EOPNOTSUPP;
  ASSERT_TRUE(id_->bind(kAnyPort));
  EXPECT_EQ(id_->local_address().port(), 5000);
  ASSERT_TRUE(id_->listen(5));
  EXPECT_EQ(id_->event_fd(), card_->latest->event_fd());
}

TEST_F(ManyDevicesIdTest, WhereNoneCanTheFirstReasonIsTold) {
  memory_->bind_error = EACCES;
  card_->bind_error = ENODEV;
  EXPECT_EQ(id_->bind(kPort80).error().code, EACCES);
}

TEST_F(ManyDevicesIdTest, ClientsOfAllDevicesAreHeardAndNoneWaitsForTheOthers) {
  ASSERT_TRUE(id_->bind(kPort80));
  ASSERT_TRUE(id_->listen(5));
  EXPECT_FALSE(is_readable(id_->event_fd()));
  for (int i = 0; i < 3; ++i) memory_->latest->client_comes();
  card_->latest->client_comes();
  EXPECT_TRUE(is_readable(id_->event_fd()));
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(id_->next_event());
  EXPECT_EQ(card_->latest->clients, 0) << "the card's client waits for all of the embedded device's";
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(id_->next_event());
  EXPECT_EQ(id_->next_event().error().code, EAGAIN);
  EXPECT_FALSE(is_readable(id_->event_fd()));
}

TEST_F(ManyDevicesIdTest, TheFirstDeadlineCounts) {
  ASSERT_TRUE(id_->bind(kPort80));
  EXPECT_EQ(id_->next_deadline(), std::nullopt);
  card_->latest->deadline = Nanos(7);
  memory_->latest->deadline = Nanos(9);
  EXPECT_EQ(id_->next_deadline(), Nanos(7));
}

TEST_F(ManyDevicesIdTest, AConnectionGoesByTheCardUnlessSomebodyListensOnThisHost) {
  for (const bool listener_here : {false, true}) {
    auto id = *make_id_for_binding(registry_, kAnyPort, PortSpace::tcp);
    ASSERT_TRUE(id->bind(kAnyPort));
    memory_->has_listener = listener_here;
    StubDevice* const expected = listener_here ? memory_ : card_;
    StubId* const chosen = expected->latest;
    const std::byte path_data[72] = {};
    id->use_route(path_data);
    ASSERT_TRUE(id->resolve_addr(SocketAddress::v4(0x0a000001, 80), std::chrono::seconds(1)));
    EXPECT_EQ(chosen->route_bytes, sizeof path_data);
    EXPECT_TRUE(chosen->resolving);
    EXPECT_EQ(&id->device(), expected);
    EXPECT_EQ(id->event_fd(), chosen->event_fd());
  }
}

TEST_F(ManyDevicesIdTest, AListenerDoesWithoutADeviceThatCannotListen) {
  ASSERT_TRUE(id_->bind(kPort80));
  card_->latest->listen_error = EADDRINUSE;
  ASSERT_TRUE(id_->listen(1));
  EXPECT_EQ(id_->event_fd(), memory_->latest->event_fd());
  EXPECT_TRUE(id_->unshareable_parts().empty());
}

TEST_F(ManyDevicesIdTest, AListenerGoesOnWithoutThePartsThatDoNotSurviveAFork) {
  ASSERT_TRUE(id_->bind(kPort80));
  ASSERT_TRUE(id_->listen(1));
  EXPECT_EQ(id_->unshareable_parts(), std::vector<ConnectionId*>{card_->latest});
  ASSERT_TRUE(id_->drop_unshareable_parts());
  EXPECT_TRUE(id_->unshareable_parts().empty());
  EXPECT_EQ(id_->event_fd(), memory_->latest->event_fd());
  memory_->latest->client_comes();
  EXPECT_TRUE(id_->next_event());
  EXPECT_EQ(id_->next_event().error().code, EAGAIN);
}

TEST_F(ManyDevicesIdTest, AnIdOfAForeignDeviceHasNothingToKeep) {
  auto id = *card_->create_id(PortSpace::tcp);
  EXPECT_EQ(id->unshareable_parts(), std::vector<ConnectionId*>{id.get()});
  EXPECT_FALSE(id->drop_unshareable_parts());
  auto kept = *memory_->create_id(PortSpace::tcp);
  EXPECT_TRUE(kept->unshareable_parts().empty());
  EXPECT_TRUE(kept->drop_unshareable_parts());
}

TEST_F(ManyDevicesIdTest, WhereOneDeviceReachesTheAddressItIsThatDevicesId) {
  auto id = *make_id_for_binding(registry_, SocketAddress::v4(INADDR_LOOPBACK, 80), PortSpace::tcp);
  EXPECT_EQ(id.get(), memory_->latest);
}

}  // namespace
}  // namespace ringsock::verbs
