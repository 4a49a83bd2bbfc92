// The series of tests, their table, and the forking server.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/base/clock.h"
#include "tools/stream_session.h"
#include "tools/text.h"

namespace ringsock::tools {

namespace {

std::vector<std::size_t> sizes(bool all) {
  if (!all) return {64, 4096, 65536, 1 << 20};
  std::vector<std::size_t> out{64};
  for (std::size_t power = 128; power <= 4 << 20; power *= 2) {
    out.push_back(power);
    out.push_back(power + power / 2);
  }
  return out;
}

/// Returns the number of transfers with which all tests take about the same time.
std::uint32_t transfers_for(std::size_t bytes) {
  if (bytes >= 1 << 20) return 100;
  if (bytes >= 1 << 16) return 1000;
  if (bytes >= 1 << 10) return 10000;
  return 100000;
}

void print_header() {
  std::printf("%-10s%-8s%-8s%-8s%-8s%8s%11s%13s\n", "name", "bytes", "xfers", "iters", "total", "time", "Gb/sec",
              "usec/xfer");
  std::fflush(stdout);
}

void print_result(const StreamTest& test, Nanos elapsed) {
  const std::uint64_t transfers = 2ULL * test.iterations * test.transfers;
  const double seconds = std::chrono::duration<double>(elapsed).count();
  const double bits = static_cast<double>(transfers * test.bytes) * 8;
  std::printf("%-10s%-8s%-8s%-8s%-8s%8.2fs%10.2f%11.2f\n", test.name.c_str(), size_text(test.bytes).c_str(),
              count_text(test.transfers).c_str(), count_text(test.iterations).c_str(),
              size_text(transfers * test.bytes).c_str(), seconds, bits / seconds / 1e9,
              seconds * 1e6 / static_cast<double>(transfers));
  std::fflush(stdout);
}

Status run_test(StreamTransfer& transfer, const StreamTest& test) {
  Status done = transfer.prepare(test);
  if (done) {
    const Nanos start = monotonic_now();
    done = transfer.run(test);
    const Nanos elapsed = monotonic_now() - start;
    if (done) print_result(test, elapsed);
  }
  transfer.finish();
  return done;
}

Status run_all(StreamTransfer& transfer, const std::vector<StreamTest>& tests) {
  for (const StreamTest& test : tests) {
    if (auto done = run_test(transfer, test); !done) return done;
  }
  return ok();
}

Status connect_and_run(StreamSession& session, StreamTransfer& transfer, Optimization optimization,
                       const std::vector<StreamTest>& tests) {
  if (auto connected = session.open_connection(optimization, transfer.iomaps()); !connected) return connected;
  Status done = run_all(transfer, tests);
  session.close_connection();
  return done;
}

StreamTest custom_test(const StreamOptions& options) {
  return {.name = "custom",
          .bytes = options.transfer_bytes,
          .transfers = options.transfers,
          .iterations = options.iterations};
}

Status run_series(StreamSession& session, StreamTransfer& transfer) {
  const StreamOptions& options = session.options();
  if (options.custom) return connect_and_run(session, transfer, Optimization::none, {custom_test(options)});
  Status done = connect_and_run(session, transfer, Optimization::latency, latency_tests(options.all_sizes));
  if (!done) return done;
  return connect_and_run(session, transfer, Optimization::bandwidth, bandwidth_tests(options.all_sizes));
}

/// Returns the tests of a connection. A client's series has two connections, each served by a process, and their order
/// tells which tests it runs.
std::vector<StreamTest> tests_of_connection(const StreamOptions& options, bool is_second) {
  if (options.custom) return {custom_test(options)};
  return is_second ? bandwidth_tests(options.all_sizes) : latency_tests(options.all_sizes);
}

/// Serves connections for ever, each in its own process.
Status fork_servers(const char* tool, StreamSession& session, StreamTransfer& transfer) {
  std::signal(SIGCHLD, SIG_IGN);
  for (bool is_second = false;; is_second = !is_second) {
    auto accepted = session.accept_one();
    if (!accepted) return accepted.error();
    std::fflush(stdout);
    const pid_t child = ::fork();
    if (child < 0) return Error::last("fork");
    if (child > 0) continue;
    Status done = session.adopt(std::move(*accepted));
    if (done) done = run_all(transfer, tests_of_connection(session.options(), is_second));
    if (!done) print_failure(tool, done.error());
    session.close_connection();
    std::fflush(stdout);
    ::_exit(done ? EXIT_SUCCESS : EXIT_FAILURE);
  }
}

std::vector<StreamTest> series(bool all_sizes, const char* suffix, bool one_at_a_time) {
  std::vector<StreamTest> tests;
  for (const std::size_t bytes : sizes(all_sizes)) {
    const std::uint32_t count = transfers_for(bytes);
    tests.push_back({.name = size_text(bytes) + suffix,
                     .bytes = bytes,
                     .transfers = one_at_a_time ? 1 : count,
                     .iterations = one_at_a_time ? count : 1});
  }
  return tests;
}

}  // namespace

std::vector<StreamTest> latency_tests(bool all_sizes) { return series(all_sizes, "_lat", true); }
std::vector<StreamTest> bandwidth_tests(bool all_sizes) { return series(all_sizes, "_bw", false); }

void print_failure(const char* tool, Error error) {
  std::fprintf(stderr, "%s: %s: %s\n", tool, error.where, std::strerror(error.code));
}

int run_stream_tests(const char* tool, StreamSession& session, StreamTransfer& transfer) {
  // A peer that disconnects must cause an error message, not death by SIGPIPE.
  std::signal(SIGPIPE, SIG_IGN);
  Status done = session.options().is_client() ? ok() : session.listen(transfer.iomaps());
  if (done) {
    print_header();
    const bool forks = session.options().fork && !session.options().is_client();
    done = forks ? fork_servers(tool, session, transfer) : run_series(session, transfer);
  }
  if (!done) print_failure(tool, done.error());
  return done ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace ringsock::tools
