// libibverbs, librdmacm and the kernel behind them, played by a test.
#pragma once

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <unistd.h>

#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "core/device/rdma/calls.h"

namespace ringsock::rdma {

/// Devices, ids and queue pairs that only remember what was done to them. One at a time: calls() finds it by a global.
/// Everything that was made and not destroyed when it goes fails the test.
class FakeRdma {
 public:
  FakeRdma();
  FakeRdma(const FakeRdma&) = delete;
  FakeRdma& operator=(const FakeRdma&) = delete;
  ~FakeRdma();
  static const Calls& calls();

  /// A device with one address.
  ibv_device& add_device(const std::string& name, const std::string& address,
                         ibv_transport_type transport = IBV_TRANSPORT_IB);
  /// The device is taken out of the machine: its calls fail with EIO.
  void remove_devices();

  struct QueuePair {
    ibv_qp qp{};
    ibv_qp_cap granted{};
    ibv_qp_type type{};
    std::uint16_t max_tso_header = 0;
    std::uint32_t rate_kbps = 0;
    struct Change {
      ibv_qp_attr attr;
      int mask;
    };
    std::vector<Change> changes;
    [[nodiscard]] std::vector<ibv_qp_state> states() const;
  };
  struct Id {
    rdma_cm_id id{};
    std::map<int, std::vector<std::byte>> options;     ///< of RDMA_OPTION_ID
    std::map<int, std::vector<std::byte>> ib_options;  ///< of RDMA_OPTION_IB
    rdma_conn_param parameters{};                      ///< of connect or accept
    std::vector<std::byte> private_data;
    std::vector<std::string> calls;  ///< names, in order
    int unacknowledged = 0;
    [[nodiscard]] int count(const std::string& call) const;
  };

  /// The ids alive, oldest first.
  [[nodiscard]] std::vector<Id*> ids();
  [[nodiscard]] QueuePair& queue_pair(const ibv_qp* qp) { return *queue_pairs_.at(qp); }
  [[nodiscard]] std::size_t live_queue_pairs() const { return queue_pairs_.size(); }
  [[nodiscard]] std::size_t live_channels() const { return channels_.size(); }
  /// Of all channels: events that nobody has taken.
  [[nodiscard]] std::size_t waiting_events() const;

  /// The connection manager reports something of `id`.
  void report(Id& id, rdma_cm_event_type type, int status = 0, std::vector<std::byte> private_data = {},
              rdma_conn_param parameters = {});
  /// A client of `listener` asks for a connection. Returns its id, which is on the listener's channel.
  Id& request(Id& listener, std::vector<std::byte> private_data, rdma_conn_param parameters = {});

  /// The device whose context was opened last reports something.
  void report(ibv_event_type type, void* element = nullptr);
  /// Events of devices that nobody has taken, or that were taken and not acknowledged.
  [[nodiscard]] std::size_t pending_device_events();

  // What the test wants to happen
  std::map<std::string, int> file_errors;  ///< why a file may not be opened, by its path
  std::string missing_library;             ///< the linker's words, or none
  int open_error = 0;                      ///< of each device
  int channel_error = 0;                   ///< of the next channels
  std::uint32_t vendor_id = 0x02c9;        ///< of each device
  std::uint32_t max_inline = 256;          ///< more makes create_qp fail with EINVAL
  std::set<std::string> failing;           ///< calls that fail with `failure`
  int failure = EINVAL;
  ibv_device_attr_ex extended{};        ///< of each device
  std::vector<ibv_gid_entry> gids;      ///< the same
  std::map<unsigned, int> link_layers;  ///< of ports; others: unspecified
  ibv_mtu active_mtu = IBV_MTU_4096;    ///< of each port
  std::uint8_t path_bits = 0;           ///< of each port (LMC)
  std::uint16_t pkey_index = 0;         ///< of each id
  bool has_flow_rules = true;
  // What it sees
  int files_tried = 0;
  int list_calls = 0;
  int destroy_calls = 0;  ///< of anything

  int notified_events = 0;  ///< by rdma_notify(3), of any id

  // The calls, for the table.
  struct Channel;
  ibv_device** list(int* count);
  void free_list(ibv_device** list);
  ibv_context* open(ibv_device* device);
  int close(ibv_context* context);
  ibv_qp* make_qp(ibv_pd* pd, ibv_qp_init_attr* attr);
  ibv_qp* make_qp(ibv_qp_init_attr_ex* attr);
  rdma_event_channel* make_channel();
  void drop_channel(rdma_event_channel* channel);
  int make_id(rdma_event_channel* channel, rdma_cm_id** id);
  int drop_id(rdma_cm_id* id);
  int migrate(rdma_cm_id* id, rdma_event_channel* channel);
  int bind(rdma_cm_id* id, const sockaddr* address);
  int take_device_event(ibv_context* context, ibv_async_event* event);
  void acknowledge(const ibv_async_event& event);
  int take_event(rdma_event_channel* channel, rdma_cm_event** event);
  int acknowledge(rdma_cm_event* event);
  /// Notes the call; -1 with errno when it is to fail.
  int note(rdma_cm_id* id, const char* call);
  [[nodiscard]] bool fails(const std::string& call) const { return failing.contains(call); }
  int destroyed();
  Id& of(rdma_cm_id* id) { return *ids_.at(id); }
  std::map<const ibv_qp*, std::unique_ptr<QueuePair>>& queue_pairs() { return queue_pairs_; }
  std::set<ibv_cq*> timed_queues;
  int live_objects = 0;  ///< PDs, MRs, CQs, completion channels

 private:
  struct DeviceEntry {
    ibv_device device{};
    ibv_context context{};
    std::string address;
  };
  struct Event;
  std::list<DeviceEntry> devices_;
  std::map<ibv_device**, std::vector<ibv_device*>> lists_;  ///< not freed yet
  std::map<rdma_event_channel*, std::unique_ptr<Channel>> channels_;
  std::map<rdma_cm_id*, std::unique_ptr<Id>> ids_;
  std::vector<rdma_cm_id*> id_order_;
  std::map<const ibv_qp*, std::unique_ptr<QueuePair>> queue_pairs_;
  std::uint32_t next_qp_number_ = 100;
  bool removed_ = false;
  const pid_t owner_ = ::getpid();
  int open_contexts_ = 0;
  ibv_context* latest_context_ = nullptr;
  std::mutex device_events_lock_;
  std::deque<ibv_async_event> device_events_;
  std::multiset<const void*> taken_device_events_;  ///< what they are about
};

}  // namespace ringsock::rdma
