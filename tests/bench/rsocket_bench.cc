// Measures rsockets next to the kernel's TCP over loopback, two processes each time, and prints a table. It asserts
// nothing about time: the column "reached" compares with what the project wants on its reference machine.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/bench/measures.h"
#include "tests/bench/report.h"

namespace ringsock::bench {

namespace {

constexpr int kManyConnections = 10000;

struct Options {
  bool json = false;
  int runs = 5;
  int idle = kManyConnections;
  std::string only;  // part of the measure's name
};

using Measurement = std::function<Figure()>;

Figure median(std::vector<double> figures) {
  if (figures.empty()) return std::nullopt;
  std::sort(figures.begin(), figures.end());
  return figures[figures.size() / 2];
}

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options) {}

  [[nodiscard]] bool selected(const std::string& measure) const {
    return measure.find(options_.only) != std::string::npos;
  }

  /// Both sides take turns, so that a noisy moment of the machine hits both.
  void compare(Row row, const Measurement& kernel, const Measurement& ring) {
    if (!selected(row.measure)) return;
    std::fprintf(stderr, "  %s\n", row.measure.c_str());
    std::vector<double> of_kernel, of_ring;
    for (int run = 0; run < options_.runs; ++run) {
      if (kernel) take(of_kernel, kernel());
      take(of_ring, ring());
    }
    row.kernel = median(of_kernel);
    row.ring = median(of_ring);
    if (!row.reference) row.reference = row.kernel;
    failed_ = failed_ || !row.ring;
    rows_.push_back(std::move(row));
  }

  /// What one operation costs beside one idle connection, and beside many. A goal with a bound is a factor over the
  /// first.
  void compare_beside_idle(const std::string& what, Figure (*measure)(const Calls&, int), const Goal& goal_for_many) {
    const auto with = [&](int idle, const Goal& goal) -> Figure {
      const std::string name = what + ", " + std::to_string(idle) + " idle";
      compare(
          {name, "µs", true, {}, {}, {}, goal, ""}, [=] { return measure(kKernel, idle); },
          [=] { return measure(kRing, idle); });
      return selected(name) ? rows_.back().ring : std::nullopt;
    };
    const Figure beside_one = with(1, {});
    Goal goal = goal_for_many;
    if (goal.kind == Goal::Kind::at_most)
      goal = beside_one ? Goal{goal.kind, goal.value * *beside_one, goal.text} : Goal{};
    with(options_.idle, goal);
  }

  [[nodiscard]] Figure ring_of_last() const { return rows_.empty() ? std::nullopt : rows_.back().ring; }
  [[nodiscard]] const std::vector<Row>& rows() const { return rows_; }
  [[nodiscard]] bool failed() const { return failed_; }

 private:
  static void take(std::vector<double>& figures, const Figure& figure) {
    if (figure) figures.push_back(*figure);
  }
  const Options& options_;
  std::vector<Row> rows_;
  bool failed_ = false;
};

Figure in_millions(const Figure& figure) {
  if (!figure) return std::nullopt;
  return *figure / 1e6;
}

Goal times(double factor, const std::string& text) { return {Goal::Kind::at_least_times, factor, text}; }
Goal at_most(double bound, const std::string& text) { return {Goal::Kind::at_most, bound, text}; }

void measure_one_connection(Bench& bench) {
  const auto ring_ping_pong = [] { return ping_pong_us(kRing, Waiting::blocking); };
  bench.compare(
      {"64 B ping-pong, blocking calls, one way", "µs", true, {}, {}, {}, times(25, "25 ×"), "0.17 µs"},
      [] { return ping_pong_us(kKernel, Waiting::blocking); }, ring_ping_pong);
  bench.compare(
      {"the same, the kernel's side spinning", "µs", true, {}, {}, {}, times(12, "12 ×"), ""},
      [] { return ping_pong_us(kKernel, Waiting::spinning); }, ring_ping_pong);
  bench.compare(
      {"64 B messages, one direction", "M/s", false, {}, {}, {}, times(8, "8 ×"), "14 M/s"},
      [] { return in_millions(messages_per_second(kKernel)); }, [] { return in_millions(messages_per_second(kRing)); });
  bench.compare(
      {"64 KiB messages, one direction", "GB/s", false, {}, {}, {}, times(2.5, "2.5 ×"), "9 GB/s"},
      [] { return stream_gb_per_second(kKernel); }, [] { return stream_gb_per_second(kRing); });
  const Figure rsend = bench.ring_of_last();
  bench.compare(
      {"64 KiB, received without a copy (ratio: over rrecv)", "GB/s", false, {}, {}, rsend, times(1.3, "1.3 ×"), ""},
      {}, zero_copy_gb_per_second);
  bench.compare({"64 KiB riowrite (ratio: over rsend)", "GB/s", false, {}, {}, rsend, times(0.3, "0.3 ×"), ""}, {},
                [] { return riowrite_gb_per_second(false); });
  bench.compare({"the same into shared memory (iomap_share)", "GB/s", false, {}, {}, rsend, times(1, "1 ×"), "memcpy"},
                {}, [] { return riowrite_gb_per_second(true); });
  bench.compare(
      {"connect + 1 B each way + close, per second", "/s", false, {}, {}, {}, times(1, "1 ×"), "2 ×"},
      [] { return connections_per_second(kKernel); }, [] { return connections_per_second(kRing); });
  bench.compare(
      {"memory of an idle connection, both ends together", "KiB", true, {}, {}, {}, at_most(128, "128 KiB"), "32 KiB"},
      {}, idle_memory_kib);
  bench.compare(
      {"CPU of a reader blocked for 1 s", "%", true, {}, {}, {}, at_most(1, "1 %"), "0 %"},
      [] { return blocked_reader_cpu_percent(kKernel); }, [] { return blocked_reader_cpu_percent(kRing); });
}

void measure_many(Bench& bench) {
  bench.compare(
      {"4 busy pairs on 2 CPUs, 64 B round trips", "/s", false, {}, {}, {}, times(1, "1 ×"), ""},
      [] { return busy_pairs_round_trips_per_second(kKernel, 4); },
      [] { return busy_pairs_round_trips_per_second(kRing, 4); });
  bench.compare_beside_idle("64 B round trip, blocking", round_trip_beside_idle_us, at_most(1.25, "as beside 1"));
  bench.compare_beside_idle("64 B round trip, server in epoll_wait", epoll_round_trip_beside_idle_us,
                            at_most(1.25, "as beside 1"));
  bench.compare_beside_idle("64 B round trip, server in poll", poll_round_trip_beside_idle_us, times(1, "1 ×"));
}

int usage(int status) {
  std::fprintf(status == 0 ? stdout : stderr,
               "usage: rsocket_bench [--json] [--runs N] [--idle N] [--only TEXT]\n"
               "  --json       the table as JSON, for scripts/update-readme\n"
               "  --runs N     runs of each measurement, of which the median counts (5)\n"
               "  --idle N     idle connections in the last measurements (10000)\n"
               "  --only TEXT  measurements whose name holds TEXT\n");
  return status;
}

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool has_value = i + 1 < argc;
    if (argument == "--json") {
      options.json = true;
    } else if (argument == "--runs" && has_value) {
      options.runs = std::atoi(argv[++i]);
    } else if (argument == "--idle" && has_value) {
      options.idle = std::atoi(argv[++i]);
    } else if (argument == "--only" && has_value) {
      options.only = argv[++i];
    } else {
      return false;
    }
  }
  return options.runs > 0 && options.idle > 0;
}

}  // namespace

int run(int argc, char** argv) {
  Options options;
  if (argc == 2 && std::strcmp(argv[1], "--help") == 0) return usage(0);
  if (!parse(argc, argv, options)) return usage(2);
  Bench bench(options);
  measure_one_connection(bench);
  measure_many(bench);
  if (options.json) {
    print_json(bench.rows(), options.runs);
  } else {
    print_table(bench.rows());
  }
  return bench.failed() ? 1 : 0;
}

}  // namespace ringsock::bench

int main(int argc, char** argv) { return ringsock::bench::run(argc, argv); }
