// A script of packetdrill as it was read: events with times, packets, system calls. Numbers in packets are the
// script's.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace ringsock::packetdrill {

/// "script.pkt:LINE: what is wrong".
struct ScriptError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// When an event happens, in microseconds since the script began.
struct When {
  enum class Kind : std::uint8_t { absolute, relative, any } kind = Kind::absolute;
  std::int64_t us = 0;
  std::optional<std::int64_t> latest_us;  ///< `A~B`: at any moment between both
  std::optional<std::int64_t> ends_us;    ///< `A...B`: a system call that blocks
};

struct Field;
/// A value in the arguments of a system call.
struct Value {
  enum class Kind : std::uint8_t { number, text, ellipsis, null, list, record } kind = Kind::number;
  std::int64_t number = 0;
  std::string text;
  std::vector<Field> fields;  ///< of a list or a record
  [[nodiscard]] const Value* find(const std::string& name) const;
};
struct Field {
  std::string name;  ///< may be empty
  Value value;
};

struct CallSpec {
  std::string name;
  std::vector<Value> arguments;
  std::optional<std::int64_t> result;  ///< nothing: any
  int error = 0;                       ///< errno; 0: not compared
};

/// A TCP option; SACK blocks are pairs.
struct OptionSpec {
  enum class Kind : std::uint8_t { end, nop, mss, window_scale, sack_permitted, sack, timestamp, fast_open } kind;
  std::uint32_t first = 0, second = 0;  ///< MSS; shift; TSval and TSecr
  std::vector<std::pair<std::uint32_t, std::uint32_t>> blocks;
  std::string cookie;  ///< hexadecimal digits
};

enum class EcnSpec : std::uint8_t { any, none, ect1, ect0, ce, ect01 };

struct PacketSpec {
  bool inbound = true;
  EcnSpec ecn = EcnSpec::any;
  std::optional<std::pair<std::uint16_t, std::uint16_t>> ports;  ///< source, destination
  std::uint8_t flags = 0;
  std::uint32_t seq = 0, bytes = 0;
  std::optional<std::uint32_t> ack;
  std::optional<std::uint16_t> window, urgent;
  bool any_options = false;
  std::vector<OptionSpec> options;
};

struct IcmpSpec {
  std::string type, code;
  std::uint32_t mtu = 0;
  std::uint32_t seq = 0, bytes = 0;  ///< of the TCP segment that it quotes
};

struct ShellSpec {
  std::string command;
};
struct CodeSpec {
  std::string text;
  int line;  ///< where the text begins
};

struct Event {
  int line;
  When when;
  std::variant<PacketSpec, IcmpSpec, CallSpec, ShellSpec, CodeSpec> what;
};

struct Script {
  std::string path;
  std::map<std::string, std::string> options;  ///< `--name=value` lines
  std::vector<Event> events;
};

/// Throws ScriptError.
Script parse_script(const std::string& path, const std::string& text);

/// Returns the value of a name such as SOL_SOCKET. Also of names of errors.
std::optional<std::int64_t> find_symbol(const std::string& name);

}  // namespace ringsock::packetdrill
