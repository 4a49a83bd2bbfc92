// rstream: ping-pong over a stream, through rsockets or the kernel's.
#include <algorithm>
#include <vector>

#include "tools/pattern.h"
#include "tools/stream_session.h"

namespace ringsock::tools {
namespace {

/// Transfers messages by send and recv.
class MessageTransfer final : public StreamTransfer {
 public:
  explicit MessageTransfer(StreamSession& session) : session_(session) {}

  Status prepare(const StreamTest& test) override {
    buffer_.resize(std::max(test.bytes, kSyncBytes));
    return exchange(kSyncBytes, 1);
  }

  Status run(const StreamTest& test) override {
    for (std::uint32_t i = 0; i < test.iterations; ++i) {
      if (auto done = exchange(test.bytes, test.transfers); !done) return done;
    }
    return ok();
  }

 private:
  static constexpr std::size_t kSyncBytes = 16;

  /// Sends `count` messages to the peer and receives `count`; the client begins.
  Status exchange(std::size_t bytes, std::uint32_t count) {
    const bool sends_first = session_.options().is_client();
    if (auto done = sends_first ? send(bytes, count) : receive(bytes, count); !done) return done;
    return sends_first ? receive(bytes, count) : send(bytes, count);
  }

  Status send(std::size_t bytes, std::uint32_t count) {
    const std::span data = std::span(buffer_).first(bytes);
    for (std::uint32_t i = 0; i < count; ++i) {
      if (session_.options().verify) sent_.fill(data);
      if (auto done = session_.send_all(data); !done) return done;
    }
    return ok();
  }

  Status receive(std::size_t bytes, std::uint32_t count) {
    const std::span data = std::span(buffer_).first(bytes);
    for (std::uint32_t i = 0; i < count; ++i) {
      if (auto done = session_.receive_all(data); !done) return done;
      if (!session_.options().verify) continue;
      if (auto same = received_.verify(data); !same) return same;
    }
    return ok();
  }

  StreamSession& session_;
  std::vector<std::byte> buffer_;
  Pattern sent_;
  Pattern received_;
};

}  // namespace
}  // namespace ringsock::tools

int main(int argc, char** argv) {
  using namespace ringsock::tools;
  return stream_tool_main<MessageTransfer>(kRstream, argc, argv);
}
