// Reads and plays packet stories; stories/README.md describes the format.
#pragma once

#include <algorithm>
#include <deque>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "core/engine/tcp/connection.h"
#include "core/engine/tcp/options.h"

namespace ringsock::engine::tcp {

/// One story: a name and the lines after it.
struct Story {
  std::string name;
  std::vector<std::pair<int, std::string>> lines;  ///< line number in the file
};

inline std::vector<Story> read_stories(const std::string& path) {
  std::ifstream file(path);
  std::vector<Story> stories;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (line.empty() || line[0] == '#') continue;
    if (line.rfind("story ", 0) == 0)
      stories.push_back({line.substr(6), {}});
    else if (!stories.empty())
      stories.back().lines.emplace_back(number, line);
  }
  return stories;
}

/// A segment that has left: what each story tells of it, and what a story tells when it wants to, in this order.
struct Left {
  Nanos when;
  std::string told;
  std::vector<std::pair<std::string, std::string>> more;  ///< word and text
  /// Returns the segment in the words that `wanted` uses.
  [[nodiscard]] std::string as(const std::string& wanted) const {
    std::string text = told;
    for (const auto& [word, value] : more)
      if ((wanted + " ").find(" " + word + " ") != std::string::npos) text += " " + value;
    return text;
  }
};

/// Plays the lines of a story against one connection. Both sides' first byte has the number 1, unless it says
/// otherwise.
class Stage {
 public:
  /// Plays a line. Returns what went wrong, or nothing.
  std::string play(const std::string& line) {
    std::istringstream words(line);
    std::string time, verb;
    words >> time >> verb;
    advance(start_ + std::chrono::nanoseconds(static_cast<std::int64_t>(std::stod(time) * 1e9 + 0.5)));
    const std::string wrong = verb == ">" ? expect(words) : act(verb, words);
    pump();
    return wrong;
  }
  /// Returns what was sent and not expected.
  std::string rest() {
    std::string all;
    for (const Left& left : sent_) all += " [" + left.told + "]";
    return all;
  }

 private:
  static std::string flags_of(std::uint8_t flags) {
    std::string text;
    for (const auto& [bit, letter] : kLetters)
      if ((flags & bit) != 0) text += letter;
    return text;
  }
  void advance(Nanos to) {
    while (tcp_.next_timer() <= to && tcp_.state() != State::closed) {
      now_ = std::max(now_, tcp_.next_timer());
      tcp_.timers(now_);
      pump();
    }
    now_ = std::max(now_, to);
  }
  void pump() {
    while (auto out = tcp_.next_segment(now_)) {
      std::ostringstream text;
      text << flags_of(out->flags) << ' ' << out->seq << ':' << out->seq + out->payload_bytes;
      if ((out->flags & kAck) != 0) text << " ack " << out->ack;
      const Options options = parse_options(std::span(out->options).first(out->option_bytes));
      for (std::size_t i = 0; i < options.sack_count; ++i)
        text << " sack " << options.sack[i].begin << '-' << options.sack[i].end;
      if (out->ecn_capable) text << " ect";
      if ((out->flags & kUrg) != 0) text << " urg " << out->urgent;
      if (options.mss != 0) text << " mss " << options.mss;
      Left left{now_, text.str(), {}};
      if (options.timestamps)
        left.more.emplace_back("ts", "ts " + std::to_string(options.ts_value) + " " + std::to_string(options.ts_echo));
      left.more.emplace_back("win", "win " + std::to_string(out->window));
      sent_.push_back(std::move(left));
      segment_bytes_ = out->segment_bytes;
    }
  }
  std::string expect(std::istringstream& words) {
    std::string wanted;
    std::getline(words >> std::ws, wanted);
    if (wanted == "nothing") return sent_.empty() ? "" : "sent:" + rest();
    if (sent_.empty()) return "nothing was sent";
    const Left left = sent_.front();
    sent_.pop_front();
    if (const std::string text = left.as(wanted); text != wanted) return "sent [" + text + "]";
    if (now_ - left.when > std::chrono::milliseconds(1))
      return "sent " + std::to_string((now_ - left.when).count() / 1'000'000) + " ms earlier";
    return "";
  }
  std::string act(const std::string& verb, std::istringstream& words) {
    if (verb == "begin" || verb == "connect" || verb == "accept") return open(verb, words);
    if (verb == "<") return arrive(words);
    if (verb == "set") return set(words);
    if (verb == "shutdown") tcp_.shutdown_send(now_);
    if (verb == "close") tcp_.close(now_);
    if (verb == "abort") tcp_.abort(now_);
    if (verb == "shutdown" || verb == "close" || verb == "abort") return "";
    if (verb == "see") return see(words);
    std::uint64_t number = 0;
    words >> number;
    return verb == "write" || verb == "urgent" || verb == "read" ? transfer(verb, number) : check(verb, number);
  }
  std::string transfer(const std::string& verb, std::uint64_t number) {
    std::vector<std::byte> bytes(number, std::byte{'x'});
    if (verb == "read") return tcp_.read(bytes, now_) == number ? "" : "fewer bytes";
    const auto count = verb == "write" ? tcp_.write(bytes, now_) : tcp_.write_urgent(bytes, now_);
    return count && *count == number ? "" : "not taken";
  }
  /// Reads bytes and compares them: `see 100y 20a`.
  std::string see(std::istringstream& words) {
    std::string wanted;
    for (std::size_t count = 0; words >> count;) {
      char letter = 0;
      words >> letter;
      wanted.append(count, letter);
    }
    std::string seen(wanted.size(), '?');
    seen.resize(tcp_.read(std::as_writable_bytes(std::span(seen)), now_));
    const auto [a, b] = std::mismatch(seen.begin(), seen.end(), wanted.begin(), wanted.end());
    return a == seen.end() && b == wanted.end() ? "" : "differs at byte " + std::to_string(a - seen.begin());
  }
  std::string check(const std::string& verb, std::uint64_t number) {
    std::uint64_t is = ~0ull;
    const Info info = tcp_.info();
    if (verb == "state") is = static_cast<std::uint64_t>(tcp_.state());
    if (verb == "error") is = static_cast<std::uint64_t>(tcp_.error());
    if (verb == "readable") is = tcp_.readable();
    if (verb == "mark") is = tcp_.at_mark() ? 1 : 0;
    if (verb == "fin") is = tcp_.has_peers_end() ? 1 : 0;
    if (verb == "pri") is = tcp_.has_urgent_byte() ? 1 : 0;
    if (verb == "end") is = tcp_.at_end() ? 1 : 0;
    if (verb == "unacked") is = tcp_.unacked();
    if (verb == "cwnd") is = info.cwnd_bytes;
    if (verb == "segment") is = segment_bytes_;
    if (verb == "refused") is = refusal(tcp_.write(std::array{std::byte{'x'}}, now_));
    if (verb == "oob") is = refusal(tcp_.read_urgent());
    if (verb == "writable") is = tcp_.is_writable() ? 1 : 0;
    figure(verb, info, is);
    return is == number ? "" : verb + " is " + std::to_string(static_cast<std::int64_t>(is));
  }
  /// Returns the error of a call, or 0.
  template <class T>
  static std::uint64_t refusal(const Result<T>& result) {
    return result ? 0 : static_cast<std::uint64_t>(result.error().code);
  }
  /// Figures of TCP_INFO by name.
  static void figure(const std::string& name, const Info& info, std::uint64_t& is) {
    const auto ms = [](Nanos time) { return static_cast<std::uint64_t>(time.count() / 1'000'000); };
    const std::pair<const char*, std::uint64_t> all[] = {{"repeats", info.total_retransmits},
                                                         {"undone", info.undone_recoveries},
                                                         {"timeouts", info.time_outs},
                                                         {"ssthresh", info.ssthresh_bytes},
                                                         {"in_flight", info.in_flight_bytes},
                                                         {"lost", info.lost_bytes},
                                                         {"mss", info.snd_mss},
                                                         {"unsent", info.unsent_bytes},
                                                         {"rto", ms(info.rto)},
                                                         {"srtt", ms(info.srtt)},
                                                         {"challenges", info.challenge_acks},
                                                         {"dropped", info.dropped_segments},
                                                         {"recovering", info.in_recovery},
                                                         {"dsacks", info.duplicate_sacks},
                                                         {"reorderings", info.reorderings},
                                                         {"ecn", info.ecn},
                                                         {"rcv_mss", info.rcv_mss},
                                                         {"snd_wnd", info.snd_wnd},
                                                         {"rttvar", ms(info.rttvar)},
                                                         {"sacked", info.sacked_bytes},
                                                         {"probes", info.loss_probes},
                                                         {"in_loss", info.in_loss},
                                                         {"black_holes", info.black_holes},
                                                         {"echoes", info.congestion_echoes},
                                                         {"backoff", info.backoff}};
    for (const auto& [known, value] : all)
      if (name == known) is = value;
  }
  std::string set(std::istringstream& words) {
    Settings settings = tcp_.settings();
    std::string name;
    double value = 0;
    words >> name >> value;
    const auto time = Nanos(static_cast<std::int64_t>(value * 1e9));
    if (name == "nodelay") settings.nodelay = value != 0;
    if (name == "cork") settings.cork = value != 0;
    if (name == "inline") settings.urgent_inline = value != 0;
    if (name == "user_timeout") settings.user_timeout = time;
    if (name == "receive") settings.receive_bytes = static_cast<std::uint32_t>(value);
    if (name == "pace") settings.most_pacing_rate = static_cast<std::uint64_t>(value);
    if (name == "keepalive") settings.keepalive_idle = time, settings.keepalive = true;
    if (name == "interval") settings.keepalive_interval = time;
    if (name == "keepcnt") settings.keepalive_probes = static_cast<std::uint8_t>(value);
    if (name == "retries") settings.retries = static_cast<std::uint8_t>(value);
    if (name == "linger2") settings.fin_wait_2 = time;
    if (name == "maxseg") settings.most_mss = static_cast<std::uint16_t>(value);
    if (name == "send") settings.send_bytes = static_cast<std::uint32_t>(value);
    if (name == "mtu") {
      Seq quoted = 1;
      words >> quoted;
      tcp_.packet_too_big(static_cast<std::uint16_t>(value), words ? quoted : 1, now_);
    }
    if (name == "way") settings.mtu_payload = static_cast<std::uint16_t>(value);
    if (name == "quickack") settings.quick_ack = value != 0;
    if (name == "quick") tcp_.set_quick_ack(value != 0, now_);
    if (name != "mtu" && name != "quick") tcp_.set(settings, now_);
    return "";
  }
  std::string open(const std::string& verb, std::istringstream& words) {
    Settings settings;
    settings.mtu_payload = 1000;
    settings.timestamps = false;
    settings.receive_bytes = settings.most_receive_bytes = 65'535;
    Established state{.snd_una = 1,
                      .snd_nxt = 1,
                      .rcv_nxt = 1,
                      .snd_wnd = 65'535,
                      .snd_wl1 = 1,
                      .max_window = 65'535,
                      .rcv_wnd = 65'535,
                      .rcv_wup = 1,
                      .mss = 1000,
                      .sack = true,
                      .send_queue = {},
                      .receive_queue = {}};
    for (std::string word; words >> word;) {
      if (word == "nosack") state.sack = settings.sack = false;
      if (word == "ts") state.timestamps = settings.timestamps = true, state.timestamp_now = state.ts_recent = 100;
      if (word == "scale") state.window_scaling = true, state.snd_scale = state.rcv_scale = 7;
      if (word == "reno") settings.algorithm = Algorithm::new_reno;
      if (word == "autotune") settings.most_receive_bytes = 4u << 20;
      if (word == "ecn") state.ecn = true;
      if (word == "askecn") settings.ask_ecn = true;
      if (word == "small") settings.receive_bytes = settings.most_receive_bytes = state.rcv_wnd = 4000;
      if (word == "closedwindow") state.snd_wnd = 0;
      if (word == "window") words >> state.snd_wnd, state.max_window = state.snd_wnd;
      if (word == "stamp") words >> state.timestamp_now, state.ts_recent = state.timestamp_now;
      if (word == "at") {
        words >> state.snd_una >> state.rcv_nxt;
        state.snd_nxt = state.snd_una;
        state.snd_wl1 = state.rcv_wup = state.rcv_nxt;
      }
    }
    tcp_ = TcpConnection(settings);
    if (verb == "connect") tcp_.connect(0, now_);
    if (verb == "accept") {
      SegmentIn syn{.seq = 0, .window = 65'535, .flags = kSyn, .options = {}, .payload = {}};
      if (settings.ask_ecn) syn.flags |= kEce | kCwr;
      return tcp_.accept(syn, 0, now_) ? "" : "refused";
    }
    if (verb == "begin" && !tcp_.begin(state, now_)) return "refused";
    return "";
  }
  std::string arrive(std::istringstream& words) {
    SegmentIn in;
    std::string flags, word, raw_options;
    char colon = 0, letter = 'y';
    Seq end = 0;
    words >> flags >> in.seq >> colon >> end;
    for (const auto& [bit, letter] : kLetters)
      if (flags.find(letter) != std::string::npos) in.flags |= bit;
    in.window = 65'535;
    Options options;
    while (words >> word) {
      if (word == "ack") words >> in.ack;
      if (word == "win") words >> in.window;
      if (word == "urg") words >> in.urgent;
      if (word == "mss") words >> options.mss;
      if (word == "ce") in.congestion_experienced = true;
      if (word == "fill") words >> letter;
      if (word == "merged") words >> in.merged;
      if (word == "raw") words >> raw_options;
      if (word == "sackok") options.sack_permitted = true;
      if (word == "ts") words >> options.ts_value >> options.ts_echo, options.timestamps = true;
      if (word != "sack" || options.sack_count == 4) continue;
      SackBlock& block = options.sack[options.sack_count++];
      words >> block.begin >> colon >> block.end;
    }
    std::array<std::byte, kMostOptionBytes> raw;
    in.options = std::span(raw).first(emit_options(options, raw));
    if (!raw_options.empty()) in.options = std::span(raw).first(from_hex(raw_options, raw));
    const std::vector<std::byte> payload(end - in.seq, static_cast<std::byte>(letter));
    in.payload = payload;
    tcp_.segment(in, now_);
    return "";
  }

  static std::size_t from_hex(const std::string& text, std::array<std::byte, kMostOptionBytes>& out) {
    const std::size_t count = std::min(text.size() / 2, out.size());
    for (std::size_t i = 0; i < count; ++i)
      out[i] = static_cast<std::byte>(std::stoul(text.substr(2 * i, 2), nullptr, 16));
    return count;
  }

  static constexpr std::array<std::pair<std::uint8_t, char>, 8> kLetters{
      {{kSyn, 'S'}, {kFin, 'F'}, {kRst, 'R'}, {kPsh, 'P'}, {kAck, '.'}, {kUrg, 'U'}, {kEce, 'E'}, {kCwr, 'W'}}};
  const Nanos start_ = std::chrono::seconds(10);
  Nanos now_ = start_;
  TcpConnection tcp_;
  std::uint16_t segment_bytes_ = 0;  ///< of the last segment sent
  std::deque<Left> sent_;
};

}  // namespace ringsock::engine::tcp
