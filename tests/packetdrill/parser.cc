// The grammar of packetdrill's scripts.
#include <algorithm>
#include <array>

#include "core/engine/tcp/segment.h"
#include "tests/packetdrill/cursor.h"
#include "tests/packetdrill/script.h"

namespace ringsock::packetdrill {
namespace {

Value parse_value(Cursor& in);

/// Behind '[' or '{': values, or `name = value`, until `end`.
void parse_fields(Cursor& in, Value& out, std::string_view end) {
  while (!in.accept(end)) {
    const std::size_t start = in.position();
    std::string name = in.word();
    if (!name.empty() && in.accept("(")) (void)in.take_until(")");  // msg_iov(1) = [...]
    if (name.empty() || !in.accept("=")) {
      in.go_back(start);
      name.clear();
    }
    out.fields.push_back({name, parse_value(in)});
    if (!in.accept(",") && !in.sees(end)) in.fail("expected ',' or '" + std::string(end) + "'");
  }
}

/// A name, or what htons() and its kin make of their argument: a script's number is that of the host.
Value parse_name(Cursor& in) {
  Value out;
  const std::string name = in.word();
  if (name.empty()) in.fail("expected a value");
  if (in.accept("(")) {
    out = parse_value(in);
    in.expect(")");
    return out;
  }
  if (name == "NULL") {
    out.kind = Value::Kind::null;
    return out;
  }
  const auto number = find_symbol(name);
  if (!number) in.fail("unknown name " + name);
  out.number = *number;
  return out;
}

Value parse_atom(Cursor& in) {
  Value out;
  if (in.accept("...")) {
    out.kind = Value::Kind::ellipsis;
  } else if (in.accept("[")) {
    out.kind = Value::Kind::list;
    parse_fields(in, out, "]");
  } else if (in.accept("{")) {
    out.kind = Value::Kind::record;
    parse_fields(in, out, "}");
  } else if (auto text = in.quoted()) {
    out.kind = Value::Kind::text;
    out.text = *text;
  } else if (in.accept("~")) {
    out.number = ~parse_atom(in).number;
  } else if (const auto number = in.number()) {
    out.number = *number;
  } else {
    return parse_name(in);
  }
  return out;
}

Value parse_value(Cursor& in) {
  Value out = parse_atom(in);
  while (in.accept("|")) out.number |= parse_atom(in).number;
  return out;
}

CallSpec parse_call(Cursor& in, std::string name) {
  CallSpec out;
  out.name = std::move(name);
  in.expect("(");
  Value list;
  parse_fields(in, list, ")");
  for (Field& field : list.fields) out.arguments.push_back(std::move(field.value));
  in.expect("=");
  if (!in.accept("?")) out.result = parse_value(in).number;
  const std::size_t start = in.position();
  if (const std::string error = in.word(); error.size() > 1 && error[0] == 'E' && find_symbol(error))
    out.error = static_cast<int>(*find_symbol(error));
  else
    in.go_back(start);
  if (in.accept("(")) (void)in.take_until(")");  // a note
  return out;
}

std::uint32_t parse_number(Cursor& in) { return static_cast<std::uint32_t>(in.need_number()); }

OptionSpec parse_option(Cursor& in) {
  using Kind = OptionSpec::Kind;
  OptionSpec out{.kind = Kind::nop, .blocks = {}, .cookie = {}};
  const std::string name = in.word();
  if (name == "eol") {
    out.kind = Kind::end;
  } else if (name == "mss") {
    out.kind = Kind::mss;
    out.first = parse_number(in);
  } else if (name == "wscale") {
    out.kind = Kind::window_scale;
    out.first = parse_number(in);
  } else if (name == "sackOK") {
    out.kind = Kind::sack_permitted;
  } else if (name == "sack") {
    out.kind = Kind::sack;
    while (const auto begin = in.number()) {
      in.expect(":");
      out.blocks.emplace_back(static_cast<std::uint32_t>(*begin), parse_number(in));
    }
  } else if (name == "TS") {
    out.kind = Kind::timestamp;
    in.expect("val");
    out.first = parse_number(in);
    in.expect("ecr");
    out.second = parse_number(in);
  } else if (name == "FO") {
    out.kind = Kind::fast_open;
    out.cookie = in.word_with("");
  } else if (name != "nop") {
    in.fail("unknown TCP option " + name);
  }
  return out;
}

void parse_options(Cursor& in, PacketSpec& out) {
  if (!in.accept("<")) return;
  if (in.accept("...")) {
    out.any_options = true;
    return in.expect(">");
  }
  do {
    out.options.push_back(parse_option(in));
  } while (in.accept(","));
  in.expect(">");
}

std::uint8_t parse_flags(Cursor& in) {
  using namespace engine::tcp;
  constexpr std::array<std::pair<char, std::uint8_t>, 8> kLetters{
      {{'F', kFin}, {'S', kSyn}, {'R', kRst}, {'P', kPsh}, {'.', kAck}, {'U', kUrg}, {'E', kEce}, {'W', kCwr}}};
  if (in.accept("-")) return 0;
  const std::string word = in.word_with(".");
  unsigned out = 0;
  for (const char letter : word) {
    const auto found = std::find_if(kLetters.begin(), kLetters.end(), [=](auto one) { return one.first == letter; });
    if (found == kLetters.end()) in.fail("unknown TCP flags " + word);
    out |= found->second;
  }
  if (word.empty()) in.fail("expected TCP flags");
  return static_cast<std::uint8_t>(out);
}

EcnSpec parse_ecn(Cursor& in) {
  in.accept("(ecn");
  const std::string name = in.word();
  in.expect("]");
  if (name == "noecn") return EcnSpec::none;
  if (name == "ect0") return EcnSpec::ect0;
  if (name == "ect1") return EcnSpec::ect1;
  if (name == "ect01") return EcnSpec::ect01;
  if (name == "ce") return EcnSpec::ce;
  in.fail("unknown ECN bits " + name);
}

/// `1:1001(1000)`.
void parse_sequence(Cursor& in, std::uint32_t& seq, std::uint32_t& bytes) {
  seq = parse_number(in);
  in.expect(":");
  const std::uint32_t end = parse_number(in);
  in.expect("(");
  bytes = parse_number(in);
  in.expect(")");
  if (seq + bytes != end) in.fail("the length contradicts the sequence numbers");
}

IcmpSpec parse_icmp(Cursor& in, IcmpSpec out) {
  out.type = in.word();
  for (std::size_t start = in.position();; start = in.position()) {
    const std::string word = in.word();
    if (word == "mtu") {
      out.mtu = parse_number(in);
    } else if (out.code.empty() && !word.empty()) {
      out.code = word;
    } else {
      in.go_back(start);
      break;
    }
  }
  if (in.accept("[")) {
    parse_sequence(in, out.seq, out.bytes);
    in.expect("]");
  }
  return out;
}

void parse_ports(Cursor& in, PacketSpec& out) {
  const std::size_t start = in.position();
  const auto source = in.number();
  if (source && in.accept(">")) {
    out.ports = {static_cast<std::uint16_t>(*source), static_cast<std::uint16_t>(in.need_number())};
    in.accept(":");
  } else {
    in.go_back(start);
  }
}

PacketSpec parse_tcp(Cursor& in, PacketSpec out) {
  parse_ports(in, out);
  out.flags = parse_flags(in);
  parse_sequence(in, out.seq, out.bytes);
  if (in.accept("ack")) out.ack = parse_number(in);
  if (in.accept("win")) out.window = static_cast<std::uint16_t>(in.need_number());
  if (in.accept("urg")) out.urgent = static_cast<std::uint16_t>(in.need_number());
  parse_options(in, out);
  return out;
}

void parse_packet(Cursor& in, bool inbound, Event& event) {
  PacketSpec packet;
  packet.inbound = inbound;
  IcmpSpec icmp;
  bool quotes = false;
  if (in.accept("[")) {
    const std::size_t start = in.position();
    if ((quotes = in.number().has_value())) {
      in.go_back(start);
      parse_sequence(in, icmp.seq, icmp.bytes);
      in.expect("]");
    } else {
      packet.ecn = parse_ecn(in);
    }
  }
  if (in.accept("icmp"))
    event.what = parse_icmp(in, icmp);
  else if (quotes)
    in.fail("expected 'icmp'");
  else
    event.what = parse_tcp(in, packet);
}

std::int64_t need_time(Cursor& in) {
  const auto us = in.microseconds();
  if (!us) in.fail("expected a time");
  return *us;
}

/// The second time of a pair counts from the same moment as the first.
When parse_when(Cursor& in) {
  When out;
  if (in.accept("*")) {
    out.kind = When::Kind::any;
    return out;
  }
  if (in.accept("+")) out.kind = When::Kind::relative;
  out.us = need_time(in);
  if (in.accept("...")) {
    in.accept("+");
    out.ends_us = need_time(in);
  } else if (in.accept("~")) {
    in.accept("+");
    out.latest_us = need_time(in);
  }
  return out;
}

CodeSpec parse_code(Cursor& in) {
  CodeSpec out{{}, in.line()};
  out.text = in.take_until("}%");
  return out;
}

Event parse_event(Cursor& in) {
  Event out{in.line(), {}, {}};
  if (!in.sees("`") && !in.sees("%{"))
    out.when = parse_when(in);
  else
    out.when.kind = When::Kind::relative;
  if (in.accept("<")) {
    parse_packet(in, true, out);
  } else if (in.accept(">")) {
    parse_packet(in, false, out);
  } else if (in.accept("`")) {
    out.what = ShellSpec{in.take_until("`")};
  } else if (in.accept("%{")) {
    out.what = parse_code(in);
  } else {
    const std::string name = in.word();
    if (name.empty()) in.fail("expected a packet, a system call or code");
    out.what = parse_call(in, name);
  }
  return out;
}

}  // namespace

const Value* Value::find(const std::string& name) const {
  for (const auto& [field, value] : fields)
    if (field == name) return &value;
  return nullptr;
}

Script parse_script(const std::string& path, const std::string& text) {
  Script out{.path = path, .options = {}, .events = {}};
  Cursor in(path, text);
  while (in.accept("--")) {
    const std::string line = in.rest_of_line();
    const std::size_t equals = std::min(line.find('='), line.size());
    std::string value = equals < line.size() ? line.substr(equals + 1) : "";
    value.erase(value.find_last_not_of(" \t\r") + 1);
    out.options[line.substr(0, equals)] = value;
  }
  while (!in.at_end()) out.events.push_back(parse_event(in));
  return out;
}

}  // namespace ringsock::packetdrill
