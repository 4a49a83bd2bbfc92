// A kernel that says what a test wants.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/net/kernel.h"

namespace ringsock::net {

/// What the test and its NetworkState share: the latter owns the kernel.
struct KernelScript {
  std::vector<KernelEvent> tables;
  std::deque<KernelEvents> events;  ///< what read_events() gives, one after the other
  Path path;                        ///< the answer to every question
  Nanos path_valid_for{};
  NeighbourFacts neighbour;
  std::function<void()> before_answer = [] {};  ///< called when a question has been asked: what happens meanwhile
  std::function<void()> while_tables_are_read = [] {};
  int questions = 0;  ///< about paths
  bool ports_decide = false;
  int questions_about_ports = 0;
  int table_reads = 0;
  bool tables_fail = false;
  std::vector<std::pair<int, IpAddress>> used;  ///< use_neighbour()
  Nanos now{1};
  Nanos wake_at{};
};

class FakeKernel final : public Kernel {
 public:
  explicit FakeKernel(KernelScript& script) : script_(script) {}

  [[nodiscard]] int fd() const override { return -1; }
  void wake_at(Nanos when) override { script_.wake_at = when; }
  [[nodiscard]] Nanos now() const override { return script_.now; }
  Result<std::vector<KernelEvent>> read_tables() override {
    ++script_.table_reads;
    if (script_.tables_fail) return Error{ENOMEM, "fake"};
    auto answer = script_.tables;
    const auto happens = std::exchange(script_.while_tables_are_read, [] {});
    happens();
    return answer;
  }
  KernelEvents read_events() override {
    if (script_.events.empty()) return {};
    KernelEvents next = std::move(script_.events.front());
    script_.events.pop_front();
    next.more = !script_.events.empty();
    return next;
  }
  Result<PathAnswer> path(const PathQuery& query) override {
    ++script_.questions;
    PathAnswer answer{script_.path, script_.path_valid_for};
    if (answer.path.next_hop.is_unspecified()) answer.path.next_hop = query.destination;
    meanwhile();
    return answer;
  }
  bool ports_decide(int /*family*/) override {
    ++script_.questions_about_ports;
    return script_.ports_decide;
  }
  Result<NeighbourFacts> neighbour(int /*ifindex*/, const IpAddress& /*address*/) override {
    const NeighbourFacts answer = script_.neighbour;
    meanwhile();
    return answer;
  }
  Status use_neighbour(int ifindex, const IpAddress& address) override {
    script_.used.emplace_back(ifindex, address);
    return ok();
  }
  [[nodiscard]] std::uint8_t default_hop_limit() const override { return 64; }
  void before_fork() override {}
  void after_fork() override {}
  Status reopen() override { return ok(); }

 private:
  void meanwhile() {
    const auto happens = script_.before_answer;  // it may replace itself
    happens();
  }

  KernelScript& script_;
};

}  // namespace ringsock::net
