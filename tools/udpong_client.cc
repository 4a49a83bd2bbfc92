#include <cerrno>
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>

#include "tools/text.h"
#include "tools/udpong_session.h"

namespace ringsock::tools {

namespace {

constexpr int kControlPatience_ms = 1000;
constexpr int kEchoPatience_ms = 1;
constexpr int kControlAttempts = 10;
constexpr int kEchoAttempts = 10'000;

std::uint32_t transfers_for(std::size_t bytes) { return bytes >= 1024 ? 10000 : 100000; }

}  // namespace

std::vector<UdpongTest> udpong_tests(const UdpongOptions& options) {
  if (options.custom) return {{"custom", options.transfer_bytes, options.transfers, options.echo}};
  std::vector<UdpongTest> out;
  for (const bool echo : {true, false}) {
    for (const std::size_t bytes : {64U, 128U, 192U, 256U, 384U, 512U, 768U, 1024U, 1536U}) {
      if (options.echo && !echo) continue;
      out.push_back({size_text(bytes) + (echo ? "_lat" : "_bw"), bytes, transfers_for(bytes), echo});
    }
  }
  return out;
}

void print_udpong_header() {
  std::printf("%-10s%-8s%-8s%-8s%8s %10s%13s\n", "name", "bytes", "xfers", "total", "time", "Gb/sec", "usec/xfer");
  std::fflush(stdout);
}

void print_udpong_result(const UdpongTest& test, std::uint64_t transfers, Nanos elapsed) {
  const double seconds = std::chrono::duration<double>(elapsed).count();
  const std::uint64_t bytes = transfers * test.bytes;
  std::printf("%-10s%-8s%-8s%-8s%8.2fs%10.2f%11.2f\n", test.name.c_str(), size_text(test.bytes).c_str(),
              count_text(transfers).c_str(), size_text(bytes).c_str(), seconds,
              static_cast<double>(bytes) * 8 / seconds / 1e9,
              transfers == 0 ? 0.0 : seconds * 1e6 / static_cast<double>(transfers));
  std::fflush(stdout);
}

UdpongClient::UdpongClient(const UdpongOptions& options, Socket socket)
    : options_(options), socket_(std::move(socket)) {}

Status UdpongClient::await_room() {
  const auto ready = socket_.wait(POLLOUT, -1);
  return ready ? ok() : Status(ready.error());
}

Status UdpongClient::send(UdpongOp op, std::size_t bytes) {
  UdpongHeader header{};
  header.op = op;
  header.client = number_;
  header.sequence = sequence_;
  std::memcpy(out_.data(), &header, sizeof header);
  const int flags = options_.blocking ? 0 : MSG_DONTWAIT;
  for (;;) {
    if (options_.async) {
      if (Status room = await_room(); !room) return room;
    }
    if (socket_.calls().send(socket_.fd(), out_.data(), bytes, flags) >= 0) return ok();
    if (errno != EAGAIN && errno != EINTR) return Error::last("send");
  }
}

/// Receives until the answer comes. Returns nothing when `patience_ms` pass without a message.
Result<std::optional<UdpongHeader>> UdpongClient::await_answer(UdpongOp op, int patience_ms) {
  for (;;) {
    const ssize_t got = socket_.calls().recv(socket_.fd(), in_.data(), in_.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) {
      const auto ready = socket_.wait(POLLIN, patience_ms);
      if (ready) continue;
      if (ready.error().code == ETIMEDOUT) return std::optional<UdpongHeader>();
      return ready.error();
    }
    if (got < 0 && errno != EINTR) return Error::last("recv");
    if (got < static_cast<ssize_t>(sizeof(UdpongHeader))) continue;
    UdpongHeader header;
    std::memcpy(&header, in_.data(), sizeof header);
    if (header.op == op && header.sequence == sequence_) return std::optional(header);
  }
}

/// Sends until there is an answer, which the next exchange does not take for its own.
Result<UdpongHeader> UdpongClient::exchange(UdpongOp op, std::size_t bytes, int patience_ms, int attempts) {
  for (int i = 0; i < attempts; ++i) {
    if (Status sent = send(op, bytes); !sent) return sent.error();
    const auto answer = await_answer(op, patience_ms);
    if (!answer) return answer.error();
    if (!*answer) continue;
    ++sequence_;
    return **answer;
  }
  return Error{ETIMEDOUT, "the server does not answer"};
}

Status UdpongClient::log_in() {
  const auto answer = exchange(UdpongOp::login, kMinUdpongBytes, kControlPatience_ms, kControlAttempts);
  if (!answer) return answer.error();
  number_ = answer->client;
  return ok();
}

Status UdpongClient::send_all(const UdpongTest& test) {
  for (std::uint32_t i = 0; i < test.transfers; ++i) {
    if (!test.echo) {
      if (Status sent = send(UdpongOp::data, test.bytes); !sent) return sent;
      continue;
    }
    const auto answer = exchange(UdpongOp::echo, test.bytes, kEchoPatience_ms, kEchoAttempts);
    if (!answer) return answer.error();
  }
  return ok();
}

Status UdpongClient::run(const UdpongTest& test) {
  const auto started = exchange(UdpongOp::start, kMinUdpongBytes, kControlPatience_ms, kControlAttempts);
  if (!started) return started.error();
  const Nanos start = monotonic_now();
  if (Status sent = send_all(test); !sent) return sent;
  const auto ended = exchange(UdpongOp::end, kMinUdpongBytes, kEchoPatience_ms, kEchoAttempts);
  if (!ended) return ended.error();
  const Nanos elapsed = monotonic_now() - start;
  print_udpong_result(test, test.echo ? 2ULL * test.transfers : ended->count.host(), elapsed);
  return ok();
}

}  // namespace ringsock::tools
