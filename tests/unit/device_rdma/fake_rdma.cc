#include "tests/unit/device_rdma/fake_rdma.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <infiniband/ib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace ringsock::rdma {

namespace {
FakeRdma* current = nullptr;

void copy_address(sockaddr_storage* to, const sockaddr* from) {
  std::memcpy(to, from, from->sa_family == AF_IB ? sizeof(sockaddr_ib) : sizeof(sockaddr_in));
}

int fail(int error) {
  errno = error;
  return -1;
}
}  // namespace

struct FakeRdma::Event {
  rdma_cm_event event{};
  std::vector<std::byte> private_data;
  rdma_cm_id* owner = nullptr;  ///< whose unacknowledged event it is
};

struct FakeRdma::Channel {
  rdma_event_channel channel{};
  std::deque<std::unique_ptr<Event>> waiting;
};

FakeRdma::FakeRdma() { current = this; }

FakeRdma::~FakeRdma() {
  EXPECT_EQ(ids_.size(), 0u) << "ids left";
  EXPECT_EQ(channels_.size(), 0u) << "channels left";
  EXPECT_EQ(queue_pairs_.size(), 0u) << "queue pairs left";
  EXPECT_EQ(live_objects, 0);
  EXPECT_EQ(open_contexts_, 0);
  EXPECT_EQ(lists_.size(), 0u) << "lists of devices left";
  EXPECT_EQ(pending_device_events(), 0u);
  current = nullptr;
}

ibv_device& FakeRdma::add_device(const std::string& name, const std::string& address, ibv_transport_type transport) {
  DeviceEntry& entry = devices_.emplace_back();
  std::strncpy(entry.device.name, name.c_str(), sizeof entry.device.name - 1);
  const std::string file = "uverbs" + std::to_string(devices_.size() - 1);
  std::strncpy(entry.device.dev_name, file.c_str(), sizeof entry.device.dev_name - 1);
  entry.device.transport_type = transport;
  entry.context.device = &entry.device;
  entry.address = address;
  return entry.device;
}

void FakeRdma::remove_devices() { removed_ = true; }

std::vector<ibv_qp_state> FakeRdma::QueuePair::states() const {
  std::vector<ibv_qp_state> all;
  for (const Change& change : changes) all.push_back(change.attr.qp_state);
  return all;
}

int FakeRdma::Id::count(const std::string& call) const {
  return static_cast<int>(std::count(calls.begin(), calls.end(), call));
}

std::vector<FakeRdma::Id*> FakeRdma::ids() {
  std::vector<Id*> all;
  for (rdma_cm_id* id : id_order_) {
    if (const auto found = ids_.find(id); found != ids_.end()) all.push_back(found->second.get());
  }
  return all;
}

std::size_t FakeRdma::waiting_events() const {
  std::size_t waiting = 0;
  for (const auto& [key, channel] : channels_) waiting += channel->waiting.size();
  return waiting;
}

void FakeRdma::report(Id& id, rdma_cm_event_type type, int status, std::vector<std::byte> private_data,
                      rdma_conn_param parameters) {
  auto event = std::make_unique<Event>();
  event->private_data = std::move(private_data);
  event->event.id = &id.id;
  event->event.event = type;
  event->event.status = status;
  event->event.param.conn = parameters;
  event->event.param.conn.private_data = event->private_data.empty() ? nullptr : event->private_data.data();
  event->event.param.conn.private_data_len = static_cast<std::uint8_t>(event->private_data.size());
  event->owner = &id.id;
  Channel& channel = *channels_.at(id.id.channel);
  channel.waiting.push_back(std::move(event));
  const std::uint64_t one = 1;
  ASSERT_EQ(::write(channel.channel.fd, &one, sizeof one), static_cast<ssize_t>(sizeof one));
}

FakeRdma::Id& FakeRdma::request(Id& listener, std::vector<std::byte> private_data, rdma_conn_param parameters) {
  rdma_cm_id* id = nullptr;
  EXPECT_EQ(make_id(listener.id.channel, &id), 0);
  id->verbs = &devices_.front().context;
  report(of(id), RDMA_CM_EVENT_CONNECT_REQUEST, 0, std::move(private_data), parameters);
  Event& event = *channels_.at(listener.id.channel)->waiting.back();
  event.event.listen_id = &listener.id;
  event.owner = &listener.id;  // as in librdmacm: the listener's until it is acknowledged
  return of(id);
}

void FakeRdma::report(ibv_event_type type, void* element) {
  ibv_async_event event{};
  event.event_type = type;
  event.element.qp = static_cast<ibv_qp*>(element);
  const std::lock_guard guard(device_events_lock_);
  device_events_.push_back(event);
  const std::uint64_t one = 1;
  ASSERT_EQ(::write(latest_context_->async_fd, &one, sizeof one), static_cast<ssize_t>(sizeof one));
}

std::size_t FakeRdma::pending_device_events() {
  const std::lock_guard guard(device_events_lock_);
  return device_events_.size() + taken_device_events_.size();
}

int FakeRdma::take_device_event(ibv_context* context, ibv_async_event* event) {
  std::uint64_t taken = 0;
  if (::read(context->async_fd, &taken, sizeof taken) < 0) return removed_ ? fail(EIO) : -1;
  const std::lock_guard guard(device_events_lock_);
  *event = device_events_.front();
  device_events_.pop_front();
  taken_device_events_.insert(event->element.qp);
  return 0;
}

void FakeRdma::acknowledge(const ibv_async_event& event) {
  const std::lock_guard guard(device_events_lock_);
  const auto found = taken_device_events_.find(event.element.qp);
  ASSERT_NE(found, taken_device_events_.end()) << "acknowledged twice";
  taken_device_events_.erase(found);
}

ibv_device** FakeRdma::list(int* count) {
  ++list_calls;
  std::vector<ibv_device*> made;
  for (DeviceEntry& entry : devices_) made.push_back(&entry.device);
  *count = static_cast<int>(made.size());
  made.push_back(nullptr);
  ibv_device** const first = made.data();
  lists_.emplace(first, std::move(made));
  return first;
}

void FakeRdma::free_list(ibv_device** list) {
  auto freed = lists_.extract(list);
  ASSERT_FALSE(freed.empty());
  // A caller that goes on with it finds nothing.
  std::fill(freed.mapped().begin(), freed.mapped().end(), nullptr);
}

ibv_context* FakeRdma::open(ibv_device* device) {
  if (open_error != 0) {
    errno = open_error;
    return nullptr;
  }
  auto* context = new ibv_context{};
  context->device = device;
  context->cmd_fd = ::eventfd(0, EFD_CLOEXEC);
  context->async_fd = ::eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
  latest_context_ = context;
  ++open_contexts_;
  return context;
}

int FakeRdma::close(ibv_context* context) {
  ::close(context->cmd_fd);
  ::close(context->async_fd);
  delete context;
  --open_contexts_;
  return 0;
}

ibv_qp* FakeRdma::make_qp(ibv_pd* pd, ibv_qp_init_attr* attr) {
  if (attr->cap.max_inline_data > max_inline || fails("create_qp")) {
    errno = failure;
    return nullptr;
  }
  auto made = std::make_unique<QueuePair>();
  made->qp.pd = pd;
  made->qp.context = pd->context;
  made->qp.send_cq = attr->send_cq;
  made->qp.recv_cq = attr->recv_cq;
  made->qp.srq = attr->srq;
  made->qp.qp_num = next_qp_number_++;
  made->granted = attr->cap;
  made->type = attr->qp_type;
  ibv_qp* const qp = &made->qp;
  queue_pairs_.emplace(qp, std::move(made));
  return qp;
}

ibv_qp* FakeRdma::make_qp(ibv_qp_init_attr_ex* attr) {
  if (fails("create_qp_ex")) {
    errno = failure;
    return nullptr;
  }
  ibv_qp_init_attr plain{};
  plain.send_cq = attr->send_cq;
  plain.recv_cq = attr->recv_cq;
  plain.cap = attr->cap;
  plain.qp_type = attr->qp_type;
  ibv_qp* const qp = make_qp(attr->pd, &plain);
  if (qp != nullptr) queue_pair(qp).max_tso_header = attr->max_tso_header;
  return qp;
}

rdma_event_channel* FakeRdma::make_channel() {
  if (channel_error != 0) {
    errno = channel_error;
    return nullptr;
  }
  auto made = std::make_unique<Channel>();
  made->channel.fd = ::eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
  rdma_event_channel* const channel = &made->channel;
  channels_.emplace(channel, std::move(made));
  return channel;
}

void FakeRdma::drop_channel(rdma_event_channel* channel) {
  ::close(channel->fd);
  // A forked child closes its copy of the descriptor, and has no ids.
  for (const auto& [key, id] : ids_) EXPECT_TRUE(id->id.channel != channel || ::getpid() != owner_);
  channels_.erase(channel);
}

int FakeRdma::make_id(rdma_event_channel* channel, rdma_cm_id** id) {
  auto made = std::make_unique<Id>();
  made->id.channel = channel;
  *id = &made->id;
  id_order_.push_back(*id);
  ids_.emplace(*id, std::move(made));
  return 0;
}

int FakeRdma::drop_id(rdma_cm_id* id) {
  // librdmacm would wait for ever.
  EXPECT_EQ(of(id).unacknowledged, 0) << "destroyed with an event that was not acknowledged";
  std::erase_if(channels_.at(id->channel)->waiting, [&](const auto& event) { return event->event.id == id; });
  ids_.erase(id);
  std::erase(id_order_, id);  // the next one may be made at the same place
  return destroyed();
}

int FakeRdma::migrate(rdma_cm_id* id, rdma_event_channel* channel) {
  if (note(id, "migrate_id") != 0) return -1;
  EXPECT_EQ(of(id).unacknowledged, 0) << "moved with an event that was not acknowledged";
  id->channel = channel;
  return 0;
}

int FakeRdma::bind(rdma_cm_id* id, const sockaddr* address) {
  if (note(id, "bind_addr") != 0) return -1;
  char text[INET_ADDRSTRLEN] = "";
  const auto& in4 = *reinterpret_cast<const sockaddr_in*>(address);
  ::inet_ntop(AF_INET, &in4.sin_addr, text, sizeof text);
  copy_address(&id->route.addr.src_storage, address);
  for (DeviceEntry& entry : devices_) {
    if (entry.address != text) continue;
    id->verbs = &entry.context;
    id->port_num = 1;
  }
  return 0;
}

int FakeRdma::take_event(rdma_event_channel* channel, rdma_cm_event** event) {
  Channel& from = *channels_.at(channel);
  std::uint64_t taken = 0;
  // Where the caller forgot O_NONBLOCK, this blocks, as the kernel does.
  if (::read(channel->fd, &taken, sizeof taken) < 0) return -1;
  if (from.waiting.empty()) return fail(EAGAIN);
  Event* const first = from.waiting.front().release();
  from.waiting.pop_front();
  ++of(first->owner).unacknowledged;
  *event = &first->event;
  return 0;
}

int FakeRdma::acknowledge(rdma_cm_event* event) {
  Event* const whole = reinterpret_cast<Event*>(event);
  --of(whole->owner).unacknowledged;
  // What is read of it after this is nonsense.
  std::memset(static_cast<void*>(event), 0xee, sizeof *event);
  std::fill(whole->private_data.begin(), whole->private_data.end(), std::byte{0xee});
  delete whole;
  return 0;
}

int FakeRdma::note(rdma_cm_id* id, const char* call) {
  of(id).calls.emplace_back(call);
  return fails(call) ? fail(failure) : 0;
}

int FakeRdma::destroyed() {
  ++destroy_calls;
  return removed_ ? EIO : 0;
}

// -- the table

namespace {

template <class T>
T* made(T* object) {
  ++current->live_objects;
  return object;
}

template <class T>
int gone(T* object) {
  --current->live_objects;
  delete object;
  return current->destroyed();
}

int change_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask) {
  if (current->fails("modify_qp")) return current->failure;
  current->queue_pair(qp).changes.push_back({*attr, mask});
  return 0;
}

int note_parameters(rdma_cm_id* id, const rdma_conn_param* parameters, const char* call) {
  FakeRdma::Id& of = current->of(id);
  of.parameters = *parameters;
  const auto* data = static_cast<const std::byte*>(parameters->private_data);
  of.private_data.assign(data, data + parameters->private_data_len);
  return current->note(id, call);
}

}  // namespace

const Calls& FakeRdma::calls() {
  static const Calls table{
      .open_error = [](const char* path) -> int {
        ++current->files_tried;
        const auto error = current->file_errors.find(path);
        return error == current->file_errors.end() ? 0 : error->second;
      },
      .load_error = [] { return current->missing_library; },
      .fork_init = [] { return 0; },
      .get_device_list = [](int* count) { return current->list(count); },
      .free_device_list = [](ibv_device** list) { current->free_list(list); },
      .open_device = [](ibv_device* device) { return current->open(device); },
      .close_device = [](ibv_context* context) { return current->close(context); },
      .query_device =
          [](ibv_context*, ibv_device_attr* attr) {
            attr->vendor_id = current->vendor_id;
            attr->max_qp_wr = 1000;
            attr->max_cqe = 4000;
            attr->max_qp_rd_atom = 8;
            attr->max_qp_init_rd_atom = 4;
            return 0;
          },
      .query_port =
          [](ibv_context*, std::uint8_t port, ibv_port_attr* attr) {
            attr->link_layer = static_cast<std::uint8_t>(current->link_layers[port]);
            attr->active_mtu = current->active_mtu;
            attr->lmc = current->path_bits;
            return 0;
          },
      .alloc_pd =
          [](ibv_context* context) {
            return made(new ibv_pd{context, 0});
          },
      .dealloc_pd = [](ibv_pd* pd) { return gone(pd); },
      .reg_mr = [](ibv_pd* pd, void* address, std::size_t length, int) -> ibv_mr* {
        if (current->fails("reg_mr")) {
          errno = current->failure;
          return nullptr;
        }
        return made(new ibv_mr{pd->context, pd, address, length, 0, 7, 8});
      },
      .dereg_mr = [](ibv_mr* mr) { return gone(mr); },
      .create_comp_channel =
          [](ibv_context* context) {
            auto* channel = made(new ibv_comp_channel{});
            channel->context = context;
            channel->fd = ::eventfd(0, EFD_CLOEXEC);
            return channel;
          },
      .destroy_comp_channel =
          [](ibv_comp_channel* channel) {
            ::close(channel->fd);
            return gone(channel);
          },
      .create_cq =
          [](ibv_context* context, int cqe, void*, ibv_comp_channel* channel, int) {
            auto* cq = made(new ibv_cq{});
            cq->context = context;
            cq->channel = channel;
            cq->cqe = cqe;
            return cq;
          },
      .destroy_cq =
          [](ibv_cq* cq) {
            return current->timed_queues.erase(cq) != 0 ? gone(reinterpret_cast<ibv_cq_ex*>(cq)) : gone(cq);
          },
      .get_cq_event = [](ibv_comp_channel* channel, ibv_cq**, void**) -> int {
        std::uint64_t taken = 0;
        return ::read(channel->fd, &taken, sizeof taken) < 0 ? -1 : 0;
      },
      .ack_cq_events = [](ibv_cq*, unsigned int) {},
      .create_srq = [](ibv_pd*, ibv_srq_init_attr*) -> ibv_srq* { return nullptr; },
      .modify_srq = [](ibv_srq*, ibv_srq_attr*, int) { return EINVAL; },
      .query_srq = [](ibv_srq*, ibv_srq_attr*) { return EINVAL; },
      .destroy_srq = [](ibv_srq*) { return EINVAL; },
      .create_qp = [](ibv_pd* pd, ibv_qp_init_attr* attr) { return current->make_qp(pd, attr); },
      .modify_qp = change_qp,
      .query_qp = [](ibv_qp*, ibv_qp_attr*, int, ibv_qp_init_attr*) { return EINVAL; },
      .destroy_qp =
          [](ibv_qp* qp) {
            current->queue_pairs().erase(qp);
            return current->destroyed();
          },
      .create_ah = [](ibv_pd*, ibv_ah_attr*) -> ibv_ah* { return nullptr; },
      .destroy_ah = [](ibv_ah*) { return EINVAL; },
      .get_async_event = [](ibv_context* context,
                            ibv_async_event* event) { return current->take_device_event(context, event); },
      .ack_async_event = [](ibv_async_event* event) { current->acknowledge(*event); },
      .has_flow_rules = [](ibv_context*) { return current->has_flow_rules ? 1 : 0; },
      .query_device_ex =
          [](ibv_context*, ibv_device_attr_ex* attr) {
            *attr = current->extended;
            return current->fails("query_device_ex") ? EOPNOTSUPP : 0;
          },
      .query_gid_table =
          [](ibv_context*, ibv_gid_entry* entries, std::size_t max_entries) {
            const std::size_t count = std::min(max_entries, current->gids.size());
            std::copy_n(current->gids.begin(), count, entries);
            return static_cast<ssize_t>(count);
          },
      .create_cq_ex = [](ibv_context* context, ibv_cq_init_attr_ex* attr) -> ibv_cq_ex* {
        if (current->fails("create_cq_ex")) return nullptr;
        auto* cq = made(new ibv_cq_ex{});
        cq->context = context;
        cq->cqe = static_cast<int>(attr->cqe);
        current->timed_queues.insert(ibv_cq_ex_to_cq(cq));
        return cq;
      },
      .create_qp_ex = [](ibv_context*, ibv_qp_init_attr_ex* attr) { return current->make_qp(attr); },
      .modify_qp_rate_limit =
          [](ibv_qp* qp, ibv_qp_rate_limit_attr* attr) {
            if (current->fails("modify_qp_rate_limit")) return current->failure;
            current->queue_pair(qp).rate_kbps = attr->rate_limit;
            return 0;
          },
      .create_event_channel = [] { return current->make_channel(); },
      .destroy_event_channel = [](rdma_event_channel* channel) { current->drop_channel(channel); },
      .create_id = [](rdma_event_channel* channel, rdma_cm_id** id, void*,
                      rdma_port_space) { return current->make_id(channel, id); },
      .destroy_id = [](rdma_cm_id* id) { return current->drop_id(id); },
      .migrate_id = [](rdma_cm_id* id, rdma_event_channel* channel) { return current->migrate(id, channel); },
      .set_option =
          [](rdma_cm_id* id, int level, int name, void* value, std::size_t length) {
            const auto* bytes = static_cast<const std::byte*>(value);
            FakeRdma::Id& of = current->of(id);
            (level == RDMA_OPTION_IB ? of.ib_options : of.options)[name].assign(bytes, bytes + length);
            return current->note(id, "set_option");
          },
      .bind_addr = [](rdma_cm_id* id, sockaddr* address) { return current->bind(id, address); },
      .listen = [](rdma_cm_id* id, int) { return current->note(id, "listen"); },
      .resolve_addr =
          [](rdma_cm_id* id, sockaddr*, sockaddr* destination, int) {
            copy_address(&id->route.addr.dst_storage, destination);
            id->route.addr.src_storage.ss_family = destination->sa_family;
            return current->note(id, "resolve_addr");
          },
      .resolve_route = [](rdma_cm_id* id, int) { return current->note(id, "resolve_route"); },
      .init_qp_attr =
          [](rdma_cm_id* id, ibv_qp_attr* attr, int* mask) {
            *mask = IBV_QP_STATE | (attr->qp_state == IBV_QPS_RTR ? IBV_QP_MAX_DEST_RD_ATOMIC : 0);
            if (attr->qp_state == IBV_QPS_RTS) attr->retry_cnt = 7;
            if (attr->qp_state == IBV_QPS_INIT) {
              *mask |= IBV_QP_PKEY_INDEX;
              attr->pkey_index = current->pkey_index;
            }
            return current->note(id, "init_qp_attr");
          },
      .connect = [](rdma_cm_id* id, rdma_conn_param* p) { return note_parameters(id, p, "connect"); },
      .establish = [](rdma_cm_id* id) { return current->note(id, "establish"); },
      .accept = [](rdma_cm_id* id, rdma_conn_param* p) { return note_parameters(id, p, "accept"); },
      .reject = [](rdma_cm_id* id, const void*, std::uint8_t) { return current->note(id, "reject"); },
      .disconnect = [](rdma_cm_id* id) { return current->note(id, "disconnect"); },
      .notify =
          [](rdma_cm_id* id, ibv_event_type event) {
            if (event == IBV_EVENT_COMM_EST) ++current->notified_events;
            return current->note(id, "notify");
          },
      .get_cm_event = [](rdma_event_channel* channel,
                         rdma_cm_event** event) { return current->take_event(channel, event); },
      .ack_cm_event = [](rdma_cm_event* event) { return current->acknowledge(event); },
  };
  return table;
}

}  // namespace ringsock::rdma
