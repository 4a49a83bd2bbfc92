#include "tests/packetdrill/player.h"

#include <arpa/inet.h>
#include <linux/tcp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <future>
#include <list>
#include <sstream>

#include "tests/packetdrill/calls.h"
#include "tests/packetdrill/code.h"
#include "tests/packetdrill/icmp_names.h"
#include "tests/packetdrill/link.h"

namespace ringsock::packetdrill {
namespace {

Endpoint read_endpoint(const std::string& text, std::uint16_t port) {
  Endpoint out;
  out.port = port;
  out.address[10] = out.address[11] = 0xff;
  if (inet_pton(AF_INET, text.c_str(), out.address.data() + 12) != 1 &&
      inet_pton(AF_INET6, text.c_str(), out.address.data()) != 1)
    throw ScriptError("bad address " + text);
  return out;
}

std::string seconds_text(std::int64_t us) {
  char text[40];
  std::snprintf(text, sizeof text, "%.6f", static_cast<double>(us) / 1e6);
  return text;
}

/// A system call that blocks, on its own thread.
struct LastingCall {
  int line;
  std::int64_t ends_us;
  std::int64_t ended_us = 0;
  std::atomic<pid_t> thread{0};
  std::future<std::string> done;
};

/// Whether a thread sleeps: the kernel knows.
bool is_asleep(pid_t thread) {
  std::ifstream in("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string text;
  std::getline(in, text);
  const std::size_t end = text.rfind(')');
  return end != std::string::npos && end + 2 < text.size() && text[end + 2] == 'S';
}

class Player {
 public:
  Player(const Script& script, packetdrill_interface& table, const PlayerOptions& options)
      : script_(script),
        table_(table),
        options_(options),
        v6_sockets_(option("ip_version", "ipv4") != "ipv4"),
        local_(read_endpoint(option("local_ip", is_v6() ? "fd3d:fa7b:d17d::1" : "192.168.0.1"), 8080)),
        remote_(read_endpoint(option("remote_ip", is_v6() ? "2001:db8::1" : "192.0.2.1"), 8080)),
        calls_(table, local_, remote_, v6_sockets_),
        code_(script.path) {
    tolerance_us_ = std::max(options.tolerance_us, std::int64_t{std::atoll(option("tolerance_usecs", "0").c_str())});
    start_us_ = clock();
  }

  void run() {
    for (const Event& event : script_.events) {
      line_ = event.line;
      happen(event);
    }
    finish_lasting();
    look_for_rest();
    line_ = 0;
    if (const std::string wrong = code_.run(); !wrong.empty()) throw ScriptError(wrong);
  }
  [[nodiscard]] int line() const { return line_; }
  [[nodiscard]] bool has_lasting_call() const { return lasting_ != nullptr; }

 private:
  [[nodiscard]] std::string option(const std::string& name, const std::string& otherwise) const {
    const auto found = script_.options.find(name);
    return found == script_.options.end() ? otherwise : found->second;
  }
  [[nodiscard]] bool is_v6() const { return option("ip_version", "ipv4") == "ipv6"; }
  /// Microseconds on the clock of the stack.
  [[nodiscard]] std::int64_t clock() {
    timeval now{};
    table_.gettimeofday(table_.userdata, &now, nullptr);
    return std::int64_t{now.tv_sec} * 1'000'000 + now.tv_usec;
  }
  [[nodiscard]] std::int64_t now() { return clock() - start_us_; }
  void wait_until(std::int64_t us) {
    for (std::int64_t left = us - now(); left > 0; left = us - now())
      table_.usleep(table_.userdata, static_cast<useconds_t>(std::min<std::int64_t>(left, 10'000'000)));
  }
  void say(const std::string& text) {
    if (options_.verbose)
      std::printf("%s:%d: %s %s\n", script_.path.c_str(), line_, seconds_text(now()).c_str(), text.c_str());
  }

  void happen(const Event& event) {
    const std::int64_t base = event.when.kind == When::Kind::relative ? last_us_ : 0;
    const std::int64_t at = base + event.when.us;
    const auto* packet = std::get_if<PacketSpec>(&event.what);
    if (packet != nullptr && !packet->inbound) {
      const std::int64_t left = receive(*packet, event.when, base);
      last_us_ = event.when.kind == When::Kind::any ? left : at;
      return;
    }
    if (event.when.kind != When::Kind::any) wait_until(at);
    last_us_ = event.when.kind == When::Kind::any ? now() : at;
    if (packet != nullptr) send(*packet);
    if (const auto* icmp = std::get_if<IcmpSpec>(&event.what)) send(*icmp);
    if (const auto* call = std::get_if<CallSpec>(&event.what)) begin(*call, event.when, base);
    if (const auto* shell = std::get_if<ShellSpec>(&event.what)) command(*shell);
    if (const auto* code = std::get_if<CodeSpec>(&event.what)) note(*code);
  }

  /// The connection that a packet of the script belongs to.
  Link& link_of(const PacketSpec& spec) {
    if (spec.ports) {
      const std::uint16_t port = spec.inbound ? spec.ports->first : spec.ports->second;
      for (Link& link : links_)
        if (link.remote.port == port) return link;
      links_.push_back(new_link(port));
      return links_.back();
    }
    if (links_.empty() || fresh_) links_.push_back(new_link(connects_ ? remote_.port : next_port_++));
    fresh_ = false;
    return links_.back();
  }
  [[nodiscard]] Link new_link(std::uint16_t port) const {
    Link out;
    out.local = local_;
    if (connects_) out.local.port = 0;
    out.remote = remote_;
    out.remote.port = port;
    out.any_push = options_.kernel;  // without segmentation offload it depends on the sizes of the kernel's buffers
    out.tick_us = static_cast<std::uint32_t>(std::atoi(option("tcp_ts_tick_usecs", "0").c_str()));
    return out;
  }

  void send(const PacketSpec& spec) {
    const Bytes packet = link_of(spec).make(spec);
    if (table_.netdev_send(table_.userdata, packet.data(), packet.size()) != 0) throw ScriptError("netdev_send failed");
    say("inbound packet");
  }

  void send(const IcmpSpec& spec) {
    if (links_.empty()) throw ScriptError("an ICMP error before any packet");
    const Link& link = links_.back();
    IcmpError error{link.local, link.remote, spec.seq + link.offset(), 0, 0, spec.mtu};
    std::tie(error.type, error.code) = find_icmp(spec, link.local.is_v4());
    const Bytes packet = make_icmp_packet(remote_, error, spec.bytes);
    if (table_.netdev_send(table_.userdata, packet.data(), packet.size()) != 0) throw ScriptError("netdev_send failed");
    say("inbound icmp");
  }

  /// Takes the next packet of the stack. Returns nothing when none comes.
  bool take(Bytes& packet, std::int64_t& left_us) {
    packet.resize(70'000);
    std::size_t size = packet.size();
    long long when = 0;
    if (table_.netdev_receive(table_.userdata, packet.data(), &size, &when) != 0 || size == 0) return false;
    packet.resize(size);
    left_us = when - start_us_;
    return true;
  }

  std::int64_t receive(const PacketSpec& spec, const When& when, std::int64_t base) {
    Bytes packet;
    std::int64_t left = 0;
    if (!take(packet, left)) throw ScriptError("error handling packet: no packet has left");
    const auto live = parse_packet(packet);
    if (!live) throw ScriptError("error handling packet: broken packet");
    Link& link = link_of(spec);
    if (link.local.port == 0) link.local = live->source;
    const std::string wrong = live->destination == link.remote && live->source == link.local ? link.compare(spec, *live)
                                                                                             : "other connection; ";
    say("outbound packet: " + link.describe(*live));
    if (!wrong.empty())
      throw ScriptError("error handling packet: " + wrong + "actual packet: " + seconds_text(left) + ' ' +
                        link.describe(*live));
    const std::int64_t earliest = base + when.us, latest = base + when.latest_us.value_or(when.us);
    if (when.kind != When::Kind::any && (left < earliest - tolerance_us_ || left > latest + tolerance_us_))
      throw ScriptError("error handling packet: timing error: expected outbound packet at " + seconds_text(earliest) +
                        " sec but happened at " + seconds_text(left) + " sec; tolerance " +
                        seconds_text(tolerance_us_) + " sec");
    return left;
  }

  /// Packets that the script does not tell of.
  void look_for_rest() {
    if (options_.kernel) return;
    const std::int64_t end = now();
    Bytes packet;
    std::int64_t left = 0;
    if (!take(packet, left) || left > end) return;
    const auto live = parse_packet(packet);
    throw ScriptError("a packet has left that the script does not tell of: " + seconds_text(left) + ' ' +
                      (live && !links_.empty() ? links_.back().describe(*live) : ""));
  }

  void begin(const CallSpec& call, const When& when, std::int64_t base) {
    finish_lasting();
    if (call.name == "listen" || call.name == "connect" || call.name == "sendto") {
      fresh_ = fresh_ || call.name == "listen" ||
               (call.name == "connect" && call.error != EALREADY && call.error != EISCONN) ||
               (call.arguments.size() > 3 && (call.arguments[3].number & MSG_FASTOPEN) != 0);
      connects_ = call.name != "listen";
    }
    if (call.name == "bind") bind_to(call);
    say(call.name + "()");
    if (when.ends_us) return begin_lasting(call, base + *when.ends_us);
    if (const std::string wrong = calls_.run(call); !wrong.empty()) throw ScriptError(wrong);
  }

  void bind_to(const CallSpec& call) {
    const Value* port = call.arguments.size() > 1 ? call.arguments[1].find("sin_port") : nullptr;
    if (port != nullptr) local_.port = static_cast<std::uint16_t>(port->number);
  }

  void begin_lasting(const CallSpec& call, std::int64_t ends_us) {
    lasting_ = std::make_unique<LastingCall>();
    lasting_->line = line_;
    lasting_->ends_us = ends_us;
    lasting_->done = std::async(std::launch::async, [this, call, it = lasting_.get()] {
      it->thread = static_cast<pid_t>(::syscall(SYS_gettid));
      std::string wrong = calls_.run(call);
      it->ended_us = now();
      return wrong;
    });
    const auto is_done = [this] {
      return lasting_->done.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    };
    for (int asleep = 0; asleep < 5 && !is_done(); ::usleep(50))  // once may be the start of the thread
      asleep = lasting_->thread != 0 && is_asleep(lasting_->thread) ? asleep + 1 : 0;
  }

  /// A call that lasts has ended before the next call begins.
  void finish_lasting() {
    if (!lasting_) return;
    line_ = lasting_->line;
    wait_until(lasting_->ends_us);
    if (lasting_->done.wait_for(std::chrono::seconds(5)) != std::future_status::ready)
      throw ScriptError("the system call has not returned at " + seconds_text(lasting_->ends_us) + " sec");
    const auto call = std::move(lasting_);
    if (const std::string wrong = call->done.get(); !wrong.empty()) throw ScriptError(wrong);
    if (std::abs(call->ended_us - call->ends_us) > tolerance_us_)
      throw ScriptError("timing error: expected system call return at " + seconds_text(call->ends_us) +
                        " sec but happened at " + seconds_text(call->ended_us) + " sec");
  }

  /// Kernel parameters are those of the stack.
  void command(const ShellSpec& shell) {
    say("command: " + shell.command);
    if (options_.kernel && std::system(shell.command.c_str()) != 0) throw ScriptError("the command failed");
  }

  void note(const CodeSpec& snippet) {
    tcp_info info{};
    socklen_t length = sizeof info;
    const int fd = calls_.subject();
    if (fd < 0 || table_.getsockopt(table_.userdata, fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0)
      throw ScriptError("no connection whose TCP_INFO the code could see");
    code_.add(snippet, info);
  }

  const Script& script_;
  packetdrill_interface& table_;
  const PlayerOptions options_;
  const bool v6_sockets_;
  Endpoint local_, remote_;
  Calls calls_;
  Code code_;
  std::int64_t tolerance_us_ = 0, start_us_ = 0, last_us_ = 0;
  std::list<Link> links_;
  bool fresh_ = true;
  bool connects_ = false;
  std::uint16_t next_port_ = 50'001;
  std::unique_ptr<LastingCall> lasting_;
  int line_ = 0;
};

}  // namespace

Played play(const Script& script, packetdrill_interface& table, const PlayerOptions& options) {
  std::unique_ptr<Player> player;
  Played out;
  try {
    player = std::make_unique<Player>(script, table, options);
    player->run();
  } catch (const ScriptError& error) {
    const int line = player ? player->line() : 0;
    out.wrong = script.path + (line == 0 ? "" : ":" + std::to_string(line)) + ": " + error.what();
  }
  out.in_use = player && player->has_lasting_call();
  if (out.in_use) (void)player.release();  // its thread cannot be ended
  return out;
}

}  // namespace ringsock::packetdrill
