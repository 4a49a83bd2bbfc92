#include "core/config/preload_rules.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <strings.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>

#include "core/base/unique_fd.h"
#include "core/config/option_file.h"

namespace ringsock::config {

namespace {

constexpr const char* kFileName = "preload_config";
/// Larger than any file written by hand.
constexpr std::size_t kMaxRuleFileBytes = std::size_t{256} * 1024;
constexpr std::string_view kBlanks = " \t\r\v\f";
constexpr int kInfiniBandDomain = 27;  // AF_IB

/// A program that passes its connections to another process image, where only kernel sockets work.
struct BuiltInRule {
  std::string_view program;  ///< the whole name
  const char* reason;        ///< for the reader of this table
};
constexpr std::array kByTcp{
    BuiltInRule{"sshd", "re-executes itself with the connection, and shares it between privileged and other process"},
    BuiltInRule{"sshd-session", "inherits the connection from sshd over exec"},
    BuiltInRule{"sshd-auth", "inherits the connection from sshd-session"},
    BuiltInRule{"inetd", "gives connections to the programs that it starts, as their standard input and output"},
    BuiltInRule{"xinetd", "as inetd"},
    BuiltInRule{"vsftpd", "an FTP session goes from process to process, which may make neither threads nor processes"},
    BuiltInRule{"bash", "/dev/tcp: a redirection is for the programs that the shell starts"},
    BuiltInRule{"sh", "as bash"},
    BuiltInRule{"dash", "starts programs with the descriptors that it has"},
    BuiltInRule{"rsync", "the generator and the receiver are two processes on one connection"},
};

struct Word {
  std::string_view text;
  int value;
};
constexpr std::array kDomains{Word{"inet", AF_INET}, Word{"inet6", AF_INET6}, Word{"ib", kInfiniBandDomain}};
constexpr std::array kTypes{Word{"stream", SOCK_STREAM}, Word{"dgram", SOCK_DGRAM}};
constexpr std::array kProtocols{Word{"tcp", IPPROTO_TCP}, Word{"udp", IPPROTO_UDP}};
constexpr std::array kActions{Word{"rdma", static_cast<int>(PreloadAction::rdma)},
                              Word{"tcp", static_cast<int>(PreloadAction::tcp)},
                              Word{"off", static_cast<int>(PreloadAction::off)}};
constexpr std::array<std::string_view, 2> kDomainPrefixes{"af_", "pf_"};
constexpr std::array<std::string_view, 1> kTypePrefixes{"sock_"};
constexpr std::array<std::string_view, 1> kProtocolPrefixes{"ipproto_"};

bool starts_with_ignoring_case(std::string_view text, std::string_view start) {
  return text.size() >= start.size() && ::strncasecmp(text.data(), start.data(), start.size()) == 0;
}

bool equals_ignoring_case(std::string_view a, std::string_view b) {
  return a.size() == b.size() && starts_with_ignoring_case(a, b);
}

std::optional<int> find_word(std::string_view text, std::span<const Word> words) {
  for (const Word& word : words) {
    if (equals_ignoring_case(text, word.text)) return word.value;
  }
  return std::nullopt;
}

/// Parses "INET", "AF_INET" or "PF_INET".
std::optional<int> find_constant(std::string_view text, std::span<const Word> words,
                                 std::span<const std::string_view> prefixes) {
  for (const std::string_view prefix : prefixes) {
    if (!starts_with_ignoring_case(text, prefix)) continue;
    text.remove_prefix(prefix.size());
    break;
  }
  return find_word(text, words);
}

std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> fields;
  for (;;) {
    const std::size_t begin = line.find_first_not_of(kBlanks);
    if (begin == std::string_view::npos || line[begin] == '#') return fields;
    line.remove_prefix(begin);
    const std::size_t length = std::min(line.find_first_of(kBlanks), line.size());
    fields.push_back(line.substr(0, length));
    line.remove_prefix(length);
  }
}

/// A parsed line: its rule, and the program it concerns.
struct ParsedLine {
  std::string_view program;
  PreloadRule rule;
};

/// Reads the fields of one line. After a failure, problem() tells what is wrong.
class LineParser {
 public:
  explicit LineParser(std::span<const std::string_view> fields) : fields_(fields) {}

  std::optional<ParsedLine> parse() {
    if (fields_.size() < 4) return fail("a rule needs program, domain, type and protocol");
    ParsedLine line{fields_[0], {}};
    if (!constant(line.rule.domain, fields_[1], kDomains, kDomainPrefixes, "domain") ||
        !constant(line.rule.type, fields_[2], kTypes, kTypePrefixes, "type") ||
        !constant(line.rule.protocol, fields_[3], kProtocols, kProtocolPrefixes, "protocol"))
      return std::nullopt;
    if (!optional_fields(line.rule, fields_.subspan(4))) return std::nullopt;
    return line;
  }
  [[nodiscard]] const std::string& problem() const { return problem_; }

 private:
  std::nullopt_t fail(std::string problem) {
    problem_ = std::move(problem);
    return std::nullopt;
  }
  bool reject(std::string_view field, const char* why) {
    problem_ = printable(field) + " " + why;
    return false;
  }

  bool constant(std::optional<int>& out, std::string_view field, std::span<const Word> words,
                std::span<const std::string_view> prefixes, const char* kind) {
    if (field == "*") return true;
    out = find_constant(field, words, prefixes);
    if (!out) problem_ = printable(field) + " is no " + kind + " that a rule can have";
    return out.has_value();
  }

  bool optional_fields(PreloadRule& rule, std::span<const std::string_view> fields) {
    // The action is the last field, whatever the number of fields: its words are neither addresses nor ports.
    if (!fields.empty()) {
      if (const auto action = find_word(fields.back(), kActions)) {
        rule.action = static_cast<PreloadAction>(*action);
        fields = fields.first(fields.size() - 1);
      }
    }
    if (fields.size() > 2) return reject(fields[2], "is not an action: rdma, tcp or off, as the last field");
    if (!fields.empty() && !address(rule, fields[0])) return false;
    if (fields.size() > 1 && !port(rule, fields[1])) return false;
    if (rule.action == PreloadAction::off && (rule.domain || rule.type || rule.protocol || !rule.matches_any_address()))
      return reject("off", "is for the whole process: the fields between it and the program must be *");
    return true;
  }

  bool address(PreloadRule& rule, std::string_view field) {
    if (field == "*") return true;
    auto pattern = AddressPattern::parse(field);
    if (!pattern) return reject(field, "is neither an address, with or without a prefix length, nor an action");
    rule.address = *pattern;
    return true;
  }

  bool port(PreloadRule& rule, std::string_view field) {
    if (field == "*") return true;
    const std::size_t dash = field.find('-');
    const std::string_view last = dash == std::string_view::npos ? field : field.substr(dash + 1);
    const auto from = parse_number(field.substr(0, dash), 1, 65535);
    const auto to = parse_number(last, 1, 65535);
    if (from.problem != NumberProblem::none || to.problem != NumberProblem::none)
      return reject(field, "is neither a port nor a range of ports (1..65535)");
    if (from.value > to.value) return reject(field, "is a range that ends before it begins");
    rule.first_port = static_cast<std::uint16_t>(from.value);
    rule.last_port = static_cast<std::uint16_t>(to.value);
    return true;
  }

  std::span<const std::string_view> fields_;
  std::string problem_;
};

bool names_program(std::string_view pattern, std::string_view program) {
  return pattern == "*" || starts_with_ignoring_case(program, pattern);
}

bool is_built_in_by_tcp(std::string_view program) {
  if (program.starts_with('-')) program.remove_prefix(1);  // a login shell
  return std::any_of(kByTcp.begin(), kByTcp.end(), [&](const BuiltInRule& rule) { return rule.program == program; });
}

std::span<const std::uint8_t> bytes_of(const SocketAddress& address) {
  if (address.family() == AF_INET)
    return {reinterpret_cast<const std::uint8_t*>(&address.in4().sin_addr), sizeof(in_addr)};
  return {reinterpret_cast<const std::uint8_t*>(&address.in6().sin6_addr), sizeof(in6_addr)};
}

/// Parses an address of either family by inet_pton(3).
std::optional<SocketAddress> parse_address(const std::string& text) {
  in_addr v4;
  if (::inet_pton(AF_INET, text.c_str(), &v4) == 1) return SocketAddress::v4(ntohl(v4.s_addr), 0);
  in6_addr v6;
  if (::inet_pton(AF_INET6, text.c_str(), &v6) == 1) return SocketAddress::v6(v6, 0);
  return std::nullopt;
}

}  // namespace

Result<AddressPattern> AddressPattern::parse(std::string_view text) {
  constexpr unsigned kMappedBits = 96;
  const std::size_t slash = text.find('/');
  const auto address = parse_address(std::string(text.substr(0, slash)));
  if (!address) return Error{EINVAL, "rule: address"};
  const unsigned bits = address->family() == AF_INET ? 32 : 128;
  AddressPattern pattern{*address, bits};
  if (slash != std::string_view::npos) {
    const auto number = parse_number(text.substr(slash + 1), 0, bits);
    if (number.problem != NumberProblem::none) return Error{EINVAL, "rule: prefix length"};
    pattern.prefix_bits = static_cast<unsigned>(number.value);
  }
  if (address->is_v4_mapped() && pattern.prefix_bits >= kMappedBits) {
    pattern.address = address->unmapped();
    pattern.prefix_bits -= kMappedBits;
  }
  return pattern;
}

bool AddressPattern::matches(const SocketAddress& other) const {
  const SocketAddress plain = other.unmapped();
  if (plain.family() != address.family()) return false;
  const auto ours = bytes_of(address), theirs = bytes_of(plain);
  const std::size_t whole = prefix_bits / 8;
  if (!std::equal(ours.begin(), ours.begin() + static_cast<std::ptrdiff_t>(whole), theirs.begin())) return false;
  const unsigned rest = prefix_bits % 8;
  return rest == 0 || ((ours[whole] ^ theirs[whole]) >> (8 - rest)) == 0;
}

bool PreloadRule::matches_socket(int of_domain, int of_type, int of_protocol) const {
  const int kind = of_type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (of_protocol == 0 && kind == SOCK_STREAM) of_protocol = IPPROTO_TCP;
  if (of_protocol == 0 && kind == SOCK_DGRAM) of_protocol = IPPROTO_UDP;
  return domain.value_or(of_domain) == of_domain && type.value_or(kind) == kind &&
         protocol.value_or(of_protocol) == of_protocol;
}

bool PreloadRule::matches_address(const SocketAddress& of) const {
  return of.port() >= first_port && of.port() <= last_port && (!address || address->matches(of));
}

PreloadRules PreloadRules::parse(std::string_view text, const std::string& file, std::string_view program,
                                 const Report& report) {
  PreloadRules out;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const auto fields = fields_of(line);
    if (fields.empty()) continue;
    LineParser parser(fields);
    const auto parsed = parser.parse();
    if (!parsed) {
      report(file + ":" + std::to_string(number) + ": " + parser.problem() + "; the line is skipped");
      continue;
    }
    if (parsed->rule.action == PreloadAction::rdma) out.takes_rest_ = false;
    if (names_program(parsed->program, program)) out.rules_.push_back(parsed->rule);
  }
  if (is_built_in_by_tcp(program)) out.rules_.push_back({.action = PreloadAction::tcp});
  return out;
}

PreloadRules PreloadRules::load(const char* directory, std::string_view program, const Report& report) {
  const std::string file = std::string(directory) + "/" + kFileName;
  const auto text = read_option_file(AT_FDCWD, file.c_str(), kMaxRuleFileBytes);
  if (text) return parse(text->value_or(""), file, program, report);
  if (text.error().code != ENOTDIR)
    report(file + ": cannot be read (" + std::strerror(text.error().code) + "); no rule of it counts");
  return parse("", file, program, report);
}

PreloadAction PreloadRules::for_socket(int domain, int type, int protocol) const {
  for (const PreloadRule& rule : rules_) {
    if (!rule.matches_socket(domain, type, protocol)) continue;
    if (rule.action == PreloadAction::rdma) return PreloadAction::rdma;
    if (rule.matches_any_address()) return PreloadAction::tcp;
  }
  return otherwise();
}

PreloadAction PreloadRules::for_address(int domain, const SocketAddress& address, int type, int protocol) const {
  for (const PreloadRule& rule : rules_) {
    if (!rule.matches_socket(domain, type, protocol) || !rule.matches_address(address)) continue;
    return rule.action == PreloadAction::rdma ? PreloadAction::rdma : PreloadAction::tcp;
  }
  return otherwise();
}

}  // namespace ringsock::config
