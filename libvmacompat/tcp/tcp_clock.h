// What must go on for TCP connections on rings while the application makes no calls.
#pragma once

#include <vector>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/process_state.h"
#include "core/engine/tcp/spare_chunks.h"

namespace ringsock::vma {

class TcpSocket;

/// Looks at all connections every 10 ms, every 100 ms when nothing happens: runs their timers, has them follow the
/// network, and empties rings from which the application does not take anything. Runs on the service thread as long as
/// there are connections. Threads: any.
class TcpClock {
 public:
  static constexpr ProcessPart kPart = ProcessPart::tcp_clock;
  TcpClock();
  TcpClock(const TcpClock&) = delete;
  TcpClock& operator=(const TcpClock&) = delete;
  /// Returns false when there is no service thread: the connection must stay with the kernel.
  bool enter(TcpSocket& socket);
  void leave(TcpSocket& socket);
  [[nodiscard]] engine::tcp::SpareChunks& spare_chunks() { return spare_chunks_; }

 private:
  void forget_parents();
  bool schedule(Nanos period);
  void tick();

  Mutex lock_;
  std::vector<TcpSocket*> sockets_;
  bool is_scheduled_ = false;
  int quiet_ = 0;        ///< ticks in a row in which nothing happened
  unsigned generation_;  ///< fork_generation()
  engine::tcp::SpareChunks spare_chunks_;
};

TcpClock& tcp_clock();

}  // namespace ringsock::vma
