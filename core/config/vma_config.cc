#include "core/config/vma_config.h"

#include <strings.h>

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "core/config/option_file.h"
#include "core/config/vma_option_table.h"

namespace ringsock::config {

namespace {

constexpr std::string_view kPrefix = "VMA_";

struct ProfileName {
  std::string_view word;
  int number;
  VmaProfile profile;
};
constexpr ProfileName kProfiles[] = {
#define VMA_PROFILE(enumerator, word, number, ...) {word, number, VmaProfile::enumerator},
#include "core/config/vma_profiles.def"
};

bool equals_ignoring_case(std::string_view a, std::string_view b) {
  return a.size() == b.size() && ::strncasecmp(a.data(), b.data(), a.size()) == 0;
}

std::string_view without_blanks(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n\v\f";
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  return text.substr(0, text.find_last_not_of(kBlanks) + 1);
}

constexpr std::int64_t kMaxCpu = 65535;

/// Reads the hexadecimal digits of a mask, of which the last stands for the CPUs 0 to 3. Returns nothing for other
/// text.
std::optional<std::vector<unsigned>> cpus_of_mask(std::string_view digits) {
  constexpr std::string_view kHexDigits = "0123456789abcdefABCDEF";
  if (digits.empty() || digits.find_first_not_of(kHexDigits) != std::string_view::npos) return std::nullopt;
  std::vector<unsigned> out;
  for (unsigned first = 0; !digits.empty() && first <= kMaxCpu; first += 4, digits.remove_suffix(1)) {
    unsigned four = 0;
    std::from_chars(&digits.back(), &digits.back() + 1, four, 16);
    for (unsigned cpu = 0; cpu < 4; ++cpu) {
      if ((four >> cpu & 1) != 0) out.push_back(first + cpu);
    }
  }
  return out;
}

/// Reads a list of CPUs and ranges. Returns nothing for other text.
std::optional<std::vector<unsigned>> cpus_of_list(std::string_view text) {
  std::vector<unsigned> out;
  for (;;) {
    const std::string_view item = text.substr(0, text.find(','));
    const std::size_t dash = item.find('-');
    const auto from = parse_number(item.substr(0, dash), 0, kMaxCpu);
    const auto to = dash == std::string_view::npos ? from : parse_number(item.substr(dash + 1), 0, kMaxCpu);
    const bool is_wrong = from.problem != NumberProblem::none || to.problem != NumberProblem::none;
    if (is_wrong || from.value > to.value || out.size() > kMaxCpu) return std::nullopt;
    for (auto cpu = from.value; cpu <= to.value; ++cpu) out.push_back(static_cast<unsigned>(cpu));
    if (item.size() == text.size()) return out;
    text.remove_prefix(item.size() + 1);
  }
}

std::optional<std::vector<unsigned>> parse_cpus(std::string_view text) {
  const bool is_mask = text.starts_with("0x") || text.starts_with("0X");
  return is_mask ? cpus_of_mask(text.substr(2)) : cpus_of_list(text);
}

/// Returns whether the text is a mask 0x..., -1, or a list of CPUs and ranges.
bool names_cpus(std::string_view text) { return text == "-1" || parse_cpus(text).has_value(); }

/// Returns whether `value` is one of the words "0=name|10=name" of a choice.
bool has_choice(std::string_view words, std::int64_t value) {
  const std::string wanted = std::to_string(value) + "=";
  while (!words.starts_with(wanted)) {
    const std::size_t bar = words.find('|');
    if (bar == std::string_view::npos) return false;
    words.remove_prefix(bar + 1);
  }
  return true;
}

/// Returns the value of a choice's word, nothing when it is none.
std::optional<std::int32_t> value_of_word(std::string_view words, std::string_view word) {
  while (!words.empty()) {
    const std::string_view one = words.substr(0, words.find('|'));
    const std::size_t equals = one.find('=');
    if (one.substr(equals + 1) == word) {
      std::int32_t value = 0;
      std::from_chars(one.data(), one.data() + equals, value);
      return value;
    }
    words.remove_prefix(std::min(words.size(), one.size() + 1));
  }
  return std::nullopt;
}

/// Returns the values of a choice's words for a message: "0, 1 or 10".
std::string values_of(std::string_view words) {
  std::string out;
  for (;;) {
    out.append(words.substr(0, words.find('=')));
    const std::size_t bar = words.find('|');
    if (bar == std::string_view::npos) return out;
    words.remove_prefix(bar + 1);
    out += words.find('|') == std::string_view::npos ? " or " : ", ";
  }
}

/// Parses a profile: its word, in upper or lower case, or its number.
std::optional<VmaProfile> parse_profile(std::string_view text) {
  for (const ProfileName& name : kProfiles) {
    if (equals_ignoring_case(text, name.word)) return name.profile;
    if (name.number >= 0 && text == std::to_string(name.number)) return name.profile;
  }
  return std::nullopt;
}

/// Stores the values of variables in members, and reports wrong values.
class Reader {
 public:
  Reader(const char* const* environment, const Report& report) : report_(report) {
    for (; environment != nullptr && *environment != nullptr; ++environment) {
      const std::string_view entry = *environment;
      const std::size_t equals = entry.find('=');
      if (!entry.starts_with(kPrefix) || equals == std::string_view::npos) continue;
      values_.emplace(entry.substr(0, equals), entry.substr(equals + 1));
    }
  }

  [[nodiscard]] bool is_set(std::string_view variable) const { return values_.contains(variable); }

  void level(const char* variable, VmaLogLevel& member) {
    const auto text = take(variable);
    if (!text) return;
    if (const auto level = parse_vma_log_level(without_blanks(*text))) {
      member = *level;
    } else {
      reject(variable, printable(*text) + " is no log level", name_of(member));
    }
  }
  void profile(const char* variable, VmaProfile& member) {
    const auto text = take(variable);
    if (!text) return;
    if (const auto profile = parse_profile(without_blanks(*text))) {
      member = *profile;
    } else {
      reject(variable, printable(*text) + " is no profile", "none");
    }
  }
  void flag(const char* variable, bool& member) {
    if (const auto value = number(variable, INT32_MIN, INT32_MAX, member ? "1" : "0")) member = *value != 0;
  }
  template <class T>
  void number(const char* variable, T& member, std::int64_t minimum, std::int64_t maximum) {
    if (const auto value = number(variable, minimum, maximum, std::to_string(member))) member = static_cast<T>(*value);
  }
  void choice(const char* variable, std::int32_t& member, std::string_view words) {
    const auto text = take(variable);
    if (!text) return;
    if (const auto named = value_of_word(words, without_blanks(*text))) {
      member = *named;
      return;
    }
    const auto value = number(variable, INT32_MIN, INT32_MAX, std::to_string(member));
    if (!value) return;
    if (has_choice(words, *value)) {
      member = static_cast<std::int32_t>(*value);
    } else {
      reject(variable, std::to_string(*value) + " is not " + values_of(words), std::to_string(member));
    }
  }
  void text(const char* variable, std::string& member) {
    if (const auto value = take(variable)) member = *value;
  }
  void cpus(const char* variable, std::string& member) {
    const auto value = take(variable);
    if (!value) return;
    if (names_cpus(without_blanks(*value))) {
      member = without_blanks(*value);
    } else {
      reject(variable, printable(*value) + " is neither a mask 0x... nor a list of CPUs such as 0,2-4",
             printable(member));
    }
  }
  void pointer(const char* variable, VmaCallbackAddress& member) {
    const auto value = take(variable);
    if (!value) return;
    const std::string_view digits = value->starts_with("0x") ? value->substr(2) : *value;
    VmaCallbackAddress address = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), address, 16);
    if (error == std::errc() && end == digits.data() + digits.size()) {
      member = address;
    } else {
      reject(variable, printable(*value) + " is no address", "none");
    }
  }
  /// Uses the value of an old name for the new name, unless the new name is set.
  void rename(const char* old_name, const char* now) {
    const auto value = take(old_name);
    if (!value) return;
    report_(std::string(old_name) + " is called " + now + " now");
    values_.emplace(now, *value);
  }
  void ignore(const char* variable, const char* why) {
    if (take(variable)) report_(std::string(variable) + " has no effect. " + why);
  }
  /// Call it after all other functions.
  void report_unknown() {
    std::ranges::sort(known_);
    for (const auto& [name, value] : values_) {
      if (!std::ranges::binary_search(known_, name)) report_(printable(name) + " is no variable of this library");
    }
  }

 private:
  std::optional<std::string_view> take(const char* variable) {
    known_.emplace_back(variable);
    const auto found = values_.find(variable);
    if (found == values_.end()) return std::nullopt;
    return found->second;
  }
  void reject(const char* variable, const std::string& why, const std::string& used) const {
    report_(std::string(variable) + ": " + why + "; using " + used);
  }
  std::optional<std::int64_t> number(const char* variable, std::int64_t minimum, std::int64_t maximum,
                                     const std::string& used) {
    const auto text = take(variable);
    if (!text) return std::nullopt;
    const ParsedNumber parsed = parse_number(without_blanks(*text), minimum, maximum);
    switch (parsed.problem) {
      case NumberProblem::none: return parsed.value;
      case NumberProblem::empty: reject(variable, "is empty", used); break;
      case NumberProblem::not_a_number: reject(variable, printable(*text) + " is not a number", used); break;
      case NumberProblem::trailing_text:
        reject(variable, printable(*text) + " has something after the number", used);
        break;
      case NumberProblem::out_of_range:
        reject(variable,
               printable(*text) + " is not within " + std::to_string(minimum) + ".." + std::to_string(maximum), used);
        break;
    }
    return std::nullopt;
  }

  const Report& report_;
  std::map<std::string_view, std::string_view> values_;
  std::vector<std::string_view> known_;
};

void read_variables(Reader& reader, VmaConfig& out) {
#define VMA_RENAMED(variable, now) reader.rename(#variable, #now);
#include "core/config/vma_options.def"
#define VMA_LEVEL(variable, member, ...) reader.level(#variable, out.member);
#define VMA_FLAG(variable, member, ...) reader.flag(#variable, out.member);
#define VMA_NUMBER(variable, member, type, default_value, minimum, maximum, ...) \
  reader.number(#variable, out.member, minimum, maximum);
#define VMA_CHOICE(variable, member, default_value, words, ...) reader.choice(#variable, out.member, words);
#define VMA_TEXT(variable, member, ...) reader.text(#variable, out.member);
#define VMA_CPUS(variable, member, ...) reader.cpus(#variable, out.member);
#define VMA_POINTER(variable, member, ...) reader.pointer(#variable, out.member);
#define VMA_IGNORED(variable, help) reader.ignore(#variable, help);
#include "core/config/vma_options.def"
}

/// Replaces values that neither the engine nor the kernel's TCP_MAXSEG has.
void settle_tcp(VmaConfig& out, const Report& report) {
  if (out.tcp_cc_algo == 2) {
    report("VMA_TCP_CC_ALGO: rings never send without congestion control; using 1");
    out.tcp_cc_algo = 1;
  }
  constexpr std::uint32_t kLeastMss = 88, kMostMss = 32767;
  const std::uint32_t mss = std::clamp(out.mss, kLeastMss, kMostMss);
  if (out.mss == 0 || out.mss == mss) return;
  report("VMA_MSS: " + std::to_string(out.mss) + " is not within 88..32767; using " + std::to_string(mss));
  out.mss = mss;
}

/// Applies what some settings imply for others.
void settle(VmaConfig& out, const Reader& reader, const Report& report) {
  if (!reader.is_set("VMA_LOG_DETAILS") && out.log_level >= VmaLogLevel::debug) out.log_details = 2;
  if (out.select_poll_os_force) out.select_poll_os_ratio = out.select_skip_os = 1;
  const VmaConfig defaults;
  out.rx_wre_is_set = reader.is_set("VMA_RX_WRE") || out.rx_wre != defaults.rx_wre;
  out.tx_wre_is_set = reader.is_set("VMA_TX_WRE") || out.tx_wre != defaults.tx_wre;
  out.rx_poll_is_set = reader.is_set("VMA_RX_POLL") || out.rx_poll != defaults.rx_poll;
  out.select_poll_is_set = reader.is_set("VMA_SELECT_POLL") || out.select_poll != defaults.select_poll;
  out.rx_poll_init_is_set = reader.is_set("VMA_RX_POLL_INIT");
  out.rx_prefetch_bytes_is_set = reader.is_set("VMA_RX_PREFETCH_BYTES");
  out.tx_max_inline_is_set = reader.is_set("VMA_TX_MAX_INLINE");
  const auto is_any_set = [&](std::initializer_list<std::string_view> variables) {
    return std::ranges::any_of(variables, [&](std::string_view variable) { return reader.is_set(variable); });
  };
  out.cq_moderation_is_set =
      is_any_set({"VMA_CQ_MODERATION_ENABLE", "VMA_CQ_MODERATION_COUNT", "VMA_CQ_MODERATION_PERIOD_USEC"});
  out.cq_aim_is_set = is_any_set({"VMA_CQ_AIM_MAX_COUNT", "VMA_CQ_AIM_MAX_PERIOD_USEC", "VMA_CQ_AIM_INTERVAL_MSEC",
                                  "VMA_CQ_AIM_INTERRUPTS_RATE_PER_SEC"});
  out.select_poll_os_ratio_is_set =
      reader.is_set("VMA_SELECT_POLL_OS_RATIO") || out.select_poll_os_ratio != defaults.select_poll_os_ratio;
  out.select_skip_os_is_set = reader.is_set("VMA_SELECT_SKIP_OS") || out.select_skip_os != defaults.select_skip_os;
  if (out.socketxtreme) {
    out.rx_wre = 1024;
    out.gro_streams_max = out.progress_engine_interval = 0;
  }
  if (out.rx_poll < 0 || out.select_poll < 0) out.cq_moderation_enable = false;
  out.cq_aim_max_count = std::min(out.cq_aim_max_count, out.rx_wre / 2);
  const auto raise = [&](const char* variable, std::uint32_t& member, std::uint32_t least, const char* why) {
    if (member >= least) return;
    report(std::string(variable) + ": " + std::to_string(member) + " is less than " + why + "; using " +
           std::to_string(least));
    member = least;
  };
  raise("VMA_TX_WRE", out.tx_wre, 2 * out.tx_wre_batching, "twice VMA_TX_WRE_BATCHING");
  raise("VMA_TCP_TIMER_RESOLUTION_MSEC", out.tcp_timer_resolution_msec, out.timer_resolution_msec,
        "VMA_TIMER_RESOLUTION_MSEC");
  settle_tcp(out, report);
}

}  // namespace

VmaConfig vma_defaults_of(VmaProfile profile) {
  VmaConfig out;
  out.spec = profile;
#define VMA_PROFILE_SETS(of, member, value) \
  if (profile == VmaProfile::of) out.member = value;
#include "core/config/vma_profiles.def"
  return out;
}

VmaConfig load_vma_config(const char* const* environment, const Report& report) {
  Reader reader(environment, report);
  VmaProfile profile = VmaProfile::none;
  reader.profile("VMA_SPEC", profile);
  VmaConfig out = vma_defaults_of(profile);
  read_variables(reader, out);
  reader.report_unknown();
  settle(out, reader, report);
  return out;
}

namespace {

/// Returns the value of a variable in an environment as the listing shows it.
std::string value_in(const VmaOptionRow& row, const char* const* environment) {
  return row.value(load_vma_config(environment, [](const std::string&) {}));
}

/// Returns whether a variable that is set does what it says.
bool acts(const VmaOptionRow& row, const char* const* environment, bool has_tcp) {
  if (row.effect == VmaEffect::tcp) return has_tcp;
  if (row.effect != VmaEffect::always) return row.effect == VmaEffect::yes || row.effect == VmaEffect::cards;
  const std::string holding = std::string(row.variable) + "=" + row.always;
  const char* const only_that[] = {holding.c_str(), nullptr};
  return value_in(row, environment) == value_in(row, only_that);
}

}  // namespace

void report_without_effect(const char* const* environment, const VmaConfig& config, const Report& report) {
  if (environment == nullptr) return;
  const char* const* option = environment;
  while (*option != nullptr && !std::string_view(*option).starts_with("VMA_")) ++option;
  if (*option == nullptr) return;
  const Reader reader(environment, report);
  std::string never, for_tcp;
  for (const VmaOptionRow& row : vma_option_rows()) {
    if (!reader.is_set(row.variable) || acts(row, environment, config.tcp_rings != 0)) continue;
    std::string& names = row.effect == VmaEffect::tcp ? for_tcp : never;
    names += (names.empty() ? "" : ", ") + std::string(row.variable);
  }
  if (!for_tcp.empty()) for_tcp.insert(0, "while TCP goes through the kernel: ");
  if (!never.empty() && !for_tcp.empty()) never += "; ";
  if (never += for_tcp; !never.empty()) report("no effect here: " + never);
}

std::vector<unsigned> cpus_of(std::string_view text) { return parse_cpus(text).value_or(std::vector<unsigned>()); }

std::string with_process_id(std::string path, int pid) {
  const std::size_t at = path.find("%d");
  if (at != std::string::npos) path.replace(at, 2, std::to_string(pid));
  return path;
}

}  // namespace ringsock::config
