#include "librsocket/hand_over/ring_hand_overs.h"

#include "librsocket/hand_over/door.h"
#include "librsocket/hand_over/exec.h"
#include "librsocket/hand_over/hand_over.h"
#include "librsocket/hand_over/settle_connect.h"
#include "librsocket/rsocket_process.h"

namespace ringsock::rs {

namespace {

/// Passes on to the functions of hand_over.h and door.h.
class RingHandOvers final : public transports::HandOvers {
 public:
  bool is_connection(runtime::Endpoint& endpoint) const override { return ring_connection(endpoint) != nullptr; }
  bool has_other_processes(runtime::Endpoint& endpoint) const override {
    StreamSocket* const connection = ring_connection(endpoint);
    if (connection == nullptr || !connection->inheritance().is_shared()) return false;
    const FamilyRecord* const family = connection->inheritance().family();
    return family != nullptr && family->others_live(true);
  }
  bool is_under_connection(int fd) const noexcept override { return is_under_ring(fd); }
  Result<std::vector<UniqueFd>> hand_over(std::span<const HandOver> connections) const override {
    return rs::hand_over(connections);
  }
  Result<std::vector<UniqueFd>> hand_over_for_good(std::span<const runtime::Ref> connections) const override {
    return rs::hand_over_for_good(connections);
  }
  void hand_over_everything() const override { rs::hand_over_everything(); }
  Status follow(runtime::Endpoint& endpoint) const override {
    auto* const chosen = endpoint.as_chosen_socket();
    if (chosen != nullptr && chosen->was_forked_undecided()) chosen->give_up_way();
    StreamSocket* const connection = find_stream(endpoint);
    return connection != nullptr ? rs::follow(*connection) : ok();
  }
  bool has_come_back(runtime::Endpoint& endpoint) const override {
    StreamSocket* const connection = ring_connection(endpoint);
    return connection != nullptr && rs::has_come_back(*connection);
  }
  void wait_for_moves() const override { rs::wait_for_moves(); }
  Status become_unconnected(runtime::Endpoint& connection) const override {
    return rs::become_unconnected(stream_of(connection));
  }
  void finish_connect(ChosenSocket& socket) const override {
    if (connects_to_this_host(socket)) settle_connect(socket, monotonic_now() + kAnswerPatience);
  }
  bool may_bind_again(runtime::Endpoint& endpoint) const override {
    StreamSocket* const connection = ring_connection(endpoint);
    return connection != nullptr && rs::may_bind_again(*connection);
  }
  void give_to_kernel(ChosenSocket& socket) const override { rs::give_to_kernel(socket); }
  bool become_kernels(const runtime::Ref& endpoint) const override { return rs::become_kernels(endpoint); }
  void has_accepted() const override { leave_listeners_if_in_vain(); }
  void listener_is_prepared(ChosenSocket& socket, int fd) const override { rs::listener_is_prepared(socket, fd); }
  Status prepare_exec() const override { return rs::prepare_exec(); }
  void finish_answers() const noexcept override { rs::finish_answers(); }
  void answer_again() const noexcept override { rs::answer_again(); }
};

constexpr RingHandOvers kHandOversOfRings;

}  // namespace

const transports::HandOvers& ring_hand_overs() { return kHandOversOfRings; }

}  // namespace ringsock::rs
