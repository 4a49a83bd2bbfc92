// Requests and answers of 64 bytes between two TCP engines back to back, for tcp_engine_cost.sh. Prints how many. An
// argument switches timestamps on.
#include <cstdio>

#include "core/engine/tcp/connection.h"

using namespace ringsock;
using namespace ringsock::engine::tcp;

namespace {

constexpr int kWarming = 100;
constexpr int kCounted = 2000;

Established begun(bool timestamps) {
  Established state;
  state.snd_una = state.snd_nxt = state.rcv_nxt = state.rcv_wup = state.snd_wl1 = 1;
  state.snd_wnd = state.max_window = state.rcv_wnd = 65'536;
  state.mss = 1460;
  state.snd_scale = state.rcv_scale = 7;
  state.window_scaling = state.sack = true;
  state.timestamps = timestamps;
  return state;
}

void carry(TcpConnection& from, TcpConnection& to, Nanos now) {
  while (const auto out = from.next_segment(now))
    to.segment({.seq = out->seq,
                .ack = out->ack,
                .window = out->window,
                .urgent = out->urgent,
                .flags = out->flags,
                .options = std::span(out->options).first(out->option_bytes),
                .payload = out->payload[0]},
               now);
}

/// One side writes, the other one reads; the answer carries the acknowledgement.
void pass(TcpConnection& from, TcpConnection& to, Nanos now) {
  std::byte bytes[64]{};
  (void)from.write(bytes, now);
  carry(from, to, now);
  (void)to.read(bytes, now);
  (void)to.take_events();
  if (from.next_timer() <= now) from.timers(now);
}

}  // namespace

/// What callgrind counts.
extern "C" [[gnu::noinline]] void cost_of_exchange(TcpConnection& client, TcpConnection& server, Nanos now) {
  pass(client, server, now);
  pass(server, client, now + std::chrono::microseconds(10));
}

int main(int argc, char**) {
  Settings set;
  set.nodelay = true;
  TcpConnection client(set);
  TcpConnection server(set);
  Nanos now = std::chrono::seconds(1);
  if (!client.begin(begun(argc > 1), now) || !server.begin(begun(argc > 1), now)) return 1;
  for (int i = 0; i < kWarming + kCounted; ++i) cost_of_exchange(client, server, now += std::chrono::microseconds(20));
  std::printf("%d\n", kWarming + kCounted);
  return 0;
}
