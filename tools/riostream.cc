// riostream: ping-pong by writing straight into the peer's buffer.
#include <rdma/rsocket.h>
#include <sys/mman.h>

#include <array>
#include <atomic>

#include "core/base/clock.h"
#include "tools/pattern.h"
#include "tools/stream_session.h"

namespace ringsock::tools {
namespace {

/// Page aligned memory that the peer writes.
class Pages {
 public:
  Pages() = default;
  static Result<Pages> allocate(std::size_t bytes) {
    void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return Error::last("mmap");
    return Pages(static_cast<std::byte*>(memory), bytes);
  }
  Pages(Pages&& other) noexcept : memory_(std::exchange(other.memory_, {})) {}
  Pages& operator=(Pages&& other) noexcept {
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~Pages() {
    if (!memory_.empty()) ::munmap(memory_.data(), memory_.size());
  }
  [[nodiscard]] std::span<std::byte> bytes() const { return memory_; }

 private:
  Pages(std::byte* memory, std::size_t bytes) : memory_(memory, bytes) {}
  std::span<std::byte> memory_;
};

/// Both ends map one buffer at offset 0 and write it by turns. The last byte of a message is a marker: it is
/// incremented with each change of direction, and the receiver watches only this byte.
class DirectTransfer final : public StreamTransfer {
 public:
  explicit DirectTransfer(StreamSession& session) : session_(session) {}

  [[nodiscard]] int iomaps() const override { return 1; }

  Status prepare(const StreamTest& test) override {
    auto pages = Pages::allocate(test.bytes);
    if (!pages) return pages.error();
    pages_ = std::move(*pages);
    buffer_ = pages_.bytes();
    marker_ = 0;
    // A value that the first wait does not mistake for a message.
    buffer_.back() = std::byte{0xff};
    if (::riomap(session_.fd(), buffer_.data(), buffer_.size(), PROT_WRITE, 0, 0) == -1) return Error::last("riomap");
    is_mapped_ = true;
    return synchronise();
  }

  Status run(const StreamTest& test) override {
    const bool sends_first = session_.options().is_client();
    for (std::uint32_t i = 0; i < test.iterations; ++i) {
      if (auto done = sends_first ? send(test.transfers) : receive(); !done) return done;
      if (auto done = sends_first ? receive() : send(test.transfers); !done) return done;
    }
    return ok();
  }

  void finish() override {
    if (is_mapped_) ::riounmap(session_.fd(), buffer_.data(), buffer_.size());
    is_mapped_ = false;
  }

 private:
  /// Exchanges an ordinary message in each direction. When it has arrived, the peer's mapping is known, too.
  Status synchronise() {
    std::array<std::byte, 16> message{};
    const bool sends_first = session_.options().is_client();
    if (auto done = sends_first ? session_.send_all(message) : session_.receive_all(message); !done) return done;
    return sends_first ? session_.receive_all(message) : session_.send_all(message);
  }

  [[nodiscard]] std::span<std::byte> payload() const { return buffer_.first(buffer_.size() - 1); }

  /// Sends `count` messages of the same content; only the last one has the new marker.
  Status send(std::uint32_t count) {
    if (session_.options().verify) sent_.fill(payload());
    for (std::uint32_t i = 1; i < count; ++i) {
      if (auto done = write_buffer(); !done) return done;
    }
    buffer_.back() = static_cast<std::byte>(marker_++);
    return write_buffer();
  }

  Status write_buffer() {
    std::span<const std::byte> rest = buffer_;
    while (!rest.empty()) {
      if (auto ready = session_.wait_if_async(POLLOUT); !ready) return ready;
      const auto offset = static_cast<off_t>(buffer_.size() - rest.size());
      const int flags = session_.options().blocking ? 0 : MSG_DONTWAIT;
      const std::size_t count = ::riowrite(session_.fd(), rest.data(), rest.size(), offset, flags);
      if (count == 0) return Error{EFAULT, "riowrite: the peer has mapped nothing there"};
      if (count != static_cast<std::size_t>(-1)) {
        rest = rest.subspan(count);
      } else if (errno != EAGAIN && errno != EINTR) {
        return Error::last("riowrite");
      }
    }
    return ok();
  }

  Status receive() {
    const auto wanted = static_cast<std::byte>(marker_++);
    const std::atomic_ref<std::byte> marker(buffer_.back());
    // Checking the socket costs much more than reading memory.
    constexpr int kLooksPerCheck = 1 << 16;
    for (int looks = 1; marker.load(std::memory_order_acquire) != wanted; ++looks) {
      cpu_relax();
      if (looks % kLooksPerCheck != 0) continue;
      const bool is_alive = peer_is_there();
      // The peer's last message may have arrived just before it left.
      if (!is_alive && marker.load(std::memory_order_acquire) != wanted) {
        return Error{ECONNRESET, "the peer closed the connection"};
      }
    }
    return session_.options().verify ? received_.verify(payload()) : ok();
  }

  /// Returns whether the peer is connected. No stream data is sent during a test, so a readable socket has ended.
  [[nodiscard]] bool peer_is_there() const {
    const auto events = session_.connection().wait(POLLIN, 0);
    if (!events) return events.error().code == ETIMEDOUT;
    if ((*events & (POLLERR | POLLHUP)) != 0) return false;
    std::byte next{};
    return session_.calls().recv(session_.fd(), &next, 1, MSG_PEEK | MSG_DONTWAIT) != 0;
  }

  StreamSession& session_;
  Pages pages_;
  std::span<std::byte> buffer_;
  bool is_mapped_ = false;
  std::uint8_t marker_ = 0;
  Pattern sent_;
  Pattern received_;
};

}  // namespace
}  // namespace ringsock::tools

int main(int argc, char** argv) {
  using namespace ringsock::tools;
  return stream_tool_main<DirectTransfer>(kRiostream, argc, argv);
}
