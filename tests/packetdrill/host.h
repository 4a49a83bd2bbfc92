// A host with TCP sockets around core/engine/tcp, in virtual time: listeners, accept queues, orphans, TIME-WAIT.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "core/engine/tcp/connection.h"
#include "tests/packetdrill/notices.h"
#include "tests/packetdrill/packet.h"

namespace ringsock::packetdrill {

/// What setsockopt() has set that the engine's settings do not have.
struct SocketOptions {
  bool linger = false;
  int linger_seconds = 0;
  int defer_accept_seconds = 0;
  Nanos receive_timeout{}, send_timeout{};    ///< 0: for ever
  bool corrected_receive = false;             ///< SO_RCVBUF was set
  bool hears_of_icmp = false;                 ///< IP_RECVERR
  bool tells_unread = false;                  ///< TCP_INQ
  int syn_retries = 6;                        ///< TCP_SYNCNT
  std::size_t receive_low = 1;                ///< SO_RCVLOWAT, bytes
  std::map<std::pair<int, int>, int> others;  ///< by level and name: kept, without effect
};

/// A socket or an orphan.
struct Socket {
  bool listening = false;
  bool started = false;  ///< the connection exists
  bool connecting = false;
  bool connected = false;  ///< the handshake was complete once
  bool orphan = false;     ///< no descriptor refers to it
  bool read_closed = false, write_closed = false;
  bool nonblocking = false;
  bool v6 = false;
  int backlog = 0;
  Endpoint local, remote;
  SocketOptions options;
  engine::tcp::Settings settings;
  engine::tcp::TcpConnection tcp;
  std::weak_ptr<Socket> listener;  ///< of a connection that accept() has not returned yet
  std::deque<std::shared_ptr<Socket>> accepts;
  engine::tcp::Seq last_end = 0;  ///< behind the last segment that came
  Nanos deferred_until{};
  Nanos last_data_sent{}, last_data_received{}, last_ack_received{};
  std::uint64_t arrivals = 0;   ///< for EPOLLET
  int icmp_error = 0;           ///< has ended the connection
  int soft_error = 0;           ///< what ICMP messages have told: the reason of a time-out
  bool told_connected = false;  ///< to connect()
  Notices notices;

  [[nodiscard]] int error() const;
  /// Returns the error and forgets it.
  int take_error();
};
using SocketPtr = std::shared_ptr<Socket>;

/// Threads: all functions are called with mutex() held.
class Host {
 public:
  using Lock = std::unique_lock<std::mutex>;
  explicit Host(bool whole_segments) : whole_(whole_segments) {}

  std::mutex& mutex() { return mutex_; }
  [[nodiscard]] Nanos now() const { return now_; }

  SocketPtr create(bool v6);
  /// Gives an unbound socket an address and a port. Errors: EADDRINUSE.
  Status bind(const SocketPtr& socket, const Endpoint& local);
  Status listen(const SocketPtr& socket, int backlog);
  void connect(const SocketPtr& socket, const Endpoint& remote);
  /// The descriptor is gone.
  void close(const SocketPtr& socket);
  /// Takes an IP packet; answers what belongs to no socket.
  void arrive(std::span<const std::byte> packet);
  /// Sends what the connections have to send, and looks at their events.
  void pump();

  struct Packet {
    Nanos when;
    std::vector<std::byte> bytes;
  };
  /// Returns the next packet; time goes on as far as the next one takes. Nothing when no timer can bring one.
  std::optional<Packet> next_packet(Lock& lock);
  /// Lets the time pass, with timers and waiting threads in their order.
  void advance(Lock& lock, Nanos until);
  /// Waits for `done` until the deadline. The thread of the script moves the time itself; others wait for it.
  bool wait(Lock& lock, const std::function<bool()>& done, Nanos deadline);
  /// A thread that has returned from wait() tells that it has seen the time.
  void note_return();
  /// Lets threads return whose call can. On the thread of the script only.
  void settle(Lock& lock);
  [[nodiscard]] bool is_script() const { return std::this_thread::get_id() == script_; }
  /// Ends all waiting.
  void end(Lock& lock);

 private:
  struct Waiter {
    const std::function<bool()>& done;
    Nanos deadline;
    bool ready = false;
  };
  [[nodiscard]] Nanos next_event() const;
  void run_timers();
  void pump_one(const SocketPtr& socket);
  void accept_syn(const SocketPtr& listener, const Arrival& in);
  bool is_held_back(Socket& socket, const Arrival& in) const;
  void take(const SocketPtr& socket, const Arrival& in);
  void hear(const IcmpError& error);
  void refuse(const Arrival& in);
  [[nodiscard]] SocketPtr find(const Arrival& in) const;
  [[nodiscard]] SocketPtr find_listener(const Arrival& in) const;
  void reset_children(const SocketPtr& listener);

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::thread::id script_ = std::this_thread::get_id();
  const bool whole_;
  bool ended_ = false;
  Nanos now_ = std::chrono::seconds(1000);
  std::list<SocketPtr> sockets_;
  std::list<Waiter*> waiters_;
  int returning_ = 0;
  std::deque<Packet> out_;
  std::uint16_t next_port_ = 32'768;
  engine::tcp::Seq next_initial_ = 0x1000'0000;
};

}  // namespace ringsock::packetdrill
