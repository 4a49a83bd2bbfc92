#include "core/config/vma_line.h"

#include <algorithm>
#include <array>
#include <span>

#include "core/config/option_file.h"

namespace ringsock::config {

namespace {

constexpr std::string_view kBlanks = " \t\r\n\v\f";
constexpr unsigned kIpv4Bits = 32;

constexpr std::array<std::string_view, kVmaRoles> kRoles{"tcp_server", "tcp_client", "udp_receiver", "udp_sender",
                                                         "udp_connect"};

/// Reads a line from left to right.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) { skip_blanks(); }

  [[nodiscard]] bool at_end() const { return text_.empty(); }
  [[nodiscard]] std::string_view rest() const { return text_; }
  /// Takes everything up to the next blank or character of `ends`.
  std::string_view word(std::string_view ends = "") {
    std::size_t length = 0;
    while (length < text_.size() && !is_in(text_[length], kBlanks) && !is_in(text_[length], ends)) ++length;
    const std::string_view out = text_.substr(0, length);
    text_.remove_prefix(length);
    skip_blanks();
    return out;
  }
  /// Takes `character` when it is next.
  bool take(char character) {
    if (text_.empty() || text_.front() != character) return false;
    text_.remove_prefix(1);
    skip_blanks();
    return true;
  }

 private:
  static bool is_in(char c, std::string_view set) { return set.find(c) != std::string_view::npos; }
  void skip_blanks() { text_.remove_prefix(std::min(text_.find_first_not_of(kBlanks), text_.size())); }

  std::string_view text_;
};

/// Parses a decimal number without sign and leading zeros.
std::optional<std::uint32_t> plain_number(std::string_view text, std::uint32_t maximum) {
  if (text.empty() || text.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  if (text.size() > 1 && text.front() == '0') return std::nullopt;
  const ParsedNumber number = parse_number(text, 0, maximum);
  if (number.problem != NumberProblem::none) return std::nullopt;
  return static_cast<std::uint32_t>(number.value);
}

class LineParser {
 public:
  explicit LineParser(std::string_view line) : cursor_(line.substr(0, line.find('#'))) {}

  VmaLine parse() {
    if (cursor_.at_end()) return std::monostate{};
    const std::string_view keyword = cursor_.word();
    if (keyword == "use") return use_line();
    if (keyword == "application-id") return application_line();
    if (keyword == "log") return log_line();
    return fail(printable(keyword) + " is no statement: use, application-id or log");
  }

 private:
  static VmaProblem fail(std::string text) { return {std::move(text)}; }
  /// Stores what is wrong. Returns false, for the caller to return.
  bool note(std::string text) {
    problem_ = std::move(text);
    return false;
  }

  VmaLine use_line() {
    VmaRule rule{};
    if (!transport(rule, cursor_.word()) || !role(rule, cursor_.word()) || !tuple(rule.first)) return fail(problem_);
    if (cursor_.take(':') && !tuple(rule.second.emplace())) return fail(problem_);
    if (!cursor_.at_end()) return fail(printable(cursor_.rest()) + " follows the addresses");
    return rule;
  }

  bool transport(VmaRule& rule, std::string_view word) {
    if (word == "vma" || word == "*") return rule.transport = VmaTransport::vma, true;
    if (word == "os") return rule.transport = VmaTransport::os, true;
    if (word == "sdp" || word == "sa") return true;
    return note(printable(word) + " is no transport: vma, os, sdp, sa or *");
  }

  bool role(VmaRule& rule, std::string_view word) {
    const auto found = std::ranges::find(kRoles, word);
    if (found == kRoles.end())
      return note(printable(word) + " is no role: tcp_server, tcp_client, udp_receiver, udp_sender or udp_connect");
    rule.role = static_cast<VmaRole>(found - kRoles.begin());
    return true;
  }

  bool tuple(VmaTuple& out) {
    if (!(cursor_.take('[') ? bracketed_address(out) : address(out))) return false;
    if (!cursor_.take(':')) return note("an address must be followed by a colon and ports, or *");
    return ports(out);
  }

  bool address(VmaTuple& out) {
    const std::string_view text = cursor_.word(":/");
    if (text == "*") return true;
    auto pattern = AddressPattern::parse(text);
    if (!pattern) return note(printable(text) + " is no IPv4 address; IPv6 addresses stand in []");
    if (cursor_.take('/')) {
      const std::string_view length = cursor_.word(":");
      const auto bits = plain_number(length, UINT32_MAX);
      if (!bits) return note(printable(length) + " is no prefix length");
      pattern->prefix_bits = std::min(*bits, kIpv4Bits);
    }
    out.address = *pattern;
    return true;
  }

  /// Reads "[2001:db8::/32]", an extension of ours: libvma has no IPv6.
  bool bracketed_address(VmaTuple& out) {
    const std::string_view text = cursor_.word("]");
    auto pattern = AddressPattern::parse(text);
    if (!pattern || !cursor_.take(']')) return note(printable(text) + " is no address, with or without prefix length");
    out.address = *pattern;
    return true;
  }

  bool ports(VmaTuple& out) {
    const std::string_view from = cursor_.word(":-");
    if (from == "*") return true;
    const std::string_view to = cursor_.take('-') ? cursor_.word(":") : from;
    const auto first = plain_number(from, UINT16_MAX), last = plain_number(to, UINT16_MAX);
    if (!first || !last) return note(printable(first ? to : from) + " is no port (0..65535)");
    if (*first > *last)
      return note("the ports " + std::string(from) + "-" + std::string(to) + " end before they begin");
    out.first_port = static_cast<std::uint16_t>(*first);
    out.last_port = static_cast<std::uint16_t>(*last);
    return true;
  }

  VmaLine application_line() {
    VmaApplication out;
    out.program = cursor_.word();
    out.id = cursor_.word();
    if (out.id.empty()) return fail("application-id needs a program and a user id");
    if (!cursor_.at_end()) return fail(printable(cursor_.rest()) + " follows the user id");
    return out;
  }

  VmaLine log_line() {
    while (!cursor_.at_end()) {
      const std::string_view word = cursor_.word();
      if (word == "destination" ? !log_destination() : word == "min-level" ? !log_level() : !unknown_in_log(word))
        return fail(problem_);
    }
    return VmaLogLine{};
  }
  bool unknown_in_log(std::string_view word) { return note(printable(word) + " is neither destination nor min-level"); }
  bool log_destination() {
    const std::string_view word = cursor_.word();
    if (word == "stderr" || word == "syslog") return true;
    if (word != "file") return note(printable(word) + " is no destination: stderr, syslog or file NAME");
    return !cursor_.word().empty() || note("the destination file needs a name");
  }
  bool log_level() {
    const std::string_view word = cursor_.word();
    return plain_number(word, INT32_MAX) || note(printable(word) + " is no level");
  }

  Cursor cursor_;
  std::string problem_;
};

}  // namespace

VmaLine parse_vma_line(std::string_view line) { return LineParser(line).parse(); }

const char* name_of(VmaRole role) { return kRoles[static_cast<std::size_t>(role)].data(); }

}  // namespace ringsock::config
