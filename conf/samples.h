// What the sample files and the manual page say of each option: made from options.def, so that they cannot disagree
// with the parser.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ringsock::conf {

/// One file under conf/rsocket/.
struct Sample {
  std::string name;
  std::string text;
};

namespace detail {

struct Option {
  std::string name;
  std::string value;    ///< the default; empty when the file is not read
  std::string allowed;  ///< "0..65535", "auto|rdma"
  std::string unit;     ///< may be empty
  std::string help;
};

/// A choice's default is written as an enumerator; the first word of the file's language is its name there.
inline std::string first_word(std::string_view words) { return std::string(words.substr(0, words.find('|'))); }

inline std::vector<Option> options() {
  return {
#define RSOCKET_NUMBER(name, type, default_value, minimum, maximum, unit, help) \
  Option{#name, #default_value, #minimum ".." #maximum, unit, help},
#define RSOCKET_CHOICE(name, type, default_value, words, help) Option{#name, first_word(words), words, "", help},
#define RSOCKET_IGNORED(name, help) Option{#name, "", "", "", help},
#include "core/config/options.def"
  };
}

/// `text` in lines of at most 76 characters, each behind "# ".
inline std::string as_comment(std::string_view text) {
  constexpr std::size_t kWidth = 76;
  std::string out;
  while (!text.empty()) {
    std::size_t length = text.size();
    if (length > kWidth) length = text.rfind(' ', kWidth);
    out.append("# ").append(text.substr(0, length)).append("\n");
    text.remove_prefix(std::min(length + 1, text.size()));
  }
  return out;
}

inline void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
}

/// For roff: a minus sign that can be copied, and names in bold do not break.
inline std::string roff(std::string text) {
  replace_all(text, "-", "\\-");
  replace_all(text, "|", ", ");
  replace_all(text, "..", " to ");
  return text;
}

}  // namespace detail

/// The value comes first: other readers of these files stop after it.
inline std::vector<Sample> samples() {
  std::vector<Sample> out;
  for (const detail::Option& option : detail::options()) {
    if (option.value.empty()) continue;
    std::string facts = option.name + ": " + option.allowed + (option.unit.empty() ? "" : " " + option.unit) +
                        ", default " + option.value + ".";
    out.push_back(
        {option.name, option.value + "\n" + detail::as_comment(facts) + detail::as_comment(option.help) +
                          detail::as_comment("A copy of this file in the configuration directory takes effect "
                                             "in programs that start afterwards.")});
  }
  return out;
}

/// The list of options in rsocket.conf(5).
inline std::string manual_section() {
  std::string out;
  for (const detail::Option& option : detail::options()) {
    out.append(".TP\n.B ").append(option.name).append("\n").append(detail::roff(option.help)).append("\n");
    if (option.value.empty()) continue;
    out.append("Allowed: ").append(detail::roff(option.allowed));
    if (!option.unit.empty()) out.append(" ").append(option.unit);
    out.append("; default: ").append(detail::roff(option.value)).append(".\n");
  }
  return out;
}

}  // namespace ringsock::conf
