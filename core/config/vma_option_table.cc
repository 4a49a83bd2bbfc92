#include "core/config/vma_option_table.h"

#include <algorithm>
#include <cstdio>
#include <string_view>

namespace ringsock::config {

namespace {

/// Calls `visit(value, name)` for each "value=name" of a choice.
template <class Visit>
void for_each_choice(std::string_view words, Visit visit) {
  while (!words.empty()) {
    const std::string_view entry = words.substr(0, words.find('|'));
    words.remove_prefix(std::min(entry.size() + 1, words.size()));
    const std::size_t equals = entry.find('=');
    visit(entry.substr(0, equals), entry.substr(equals + 1));
  }
}

std::string choice_text(std::int32_t value, std::string_view words) {
  std::string out = std::to_string(value);
  for_each_choice(words, [&](std::string_view each, std::string_view name) {
    if (each == std::to_string(value) && !name.empty()) out.append(" (").append(name).append(")");
  });
  return out;
}

std::string allowed_choices(std::string_view words) {
  std::string out;
  for_each_choice(words, [&](std::string_view value, std::string_view name) {
    out.append(out.empty() ? "" : "; ").append(value).append(name.empty() ? " nothing" : " ").append(name);
  });
  return out;
}

std::string allowed_numbers(std::string_view minimum, std::string_view maximum, std::string_view unit) {
  std::string out(minimum);
  if (maximum == "2147483647") {
    out += " or more";
  } else {
    out.append("..").append(maximum);
  }
  return unit.empty() ? out : out.append(" ").append(unit);
}

std::string title_of(VmaProfile profile) {
  static constexpr const char* kTitles[] = {
#define VMA_PROFILE(enumerator, word, number, title) title,
#include "core/config/vma_profiles.def"
  };
  return kTitles[static_cast<std::size_t>(profile)];
}

std::string address_text(VmaCallbackAddress address) {
  char text[24];
  std::snprintf(text, sizeof text, "%#zx", address);
  return text;
}

/// Returns the value of a member as the environment would hold it.
std::string written(bool value) { return value ? "1" : "0"; }
std::string written(VmaLogLevel level) {
  std::string out = name_of(level);
  std::ranges::transform(out, out.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return out;
}
std::string written(int value) { return std::to_string(value); }
std::string written(const char* value) { return value; }

/// Returns the variable that a member comes from, null for none.
const char* variable_of(std::string_view member) {
  static constexpr const char* kVariables[][2] = {
#define VMA_LEVEL(variable, member, ...) {#member, #variable},
#define VMA_FLAG(variable, member, ...) {#member, #variable},
#define VMA_NUMBER(variable, member, ...) {#member, #variable},
#define VMA_CHOICE(variable, member, ...) {#member, #variable},
#define VMA_TEXT(variable, member, ...) {#member, #variable},
#define VMA_CPUS(variable, member, ...) {#member, #variable},
#include "core/config/vma_options.def"
  };
  for (const auto& [name, variable] : kVariables) {
    if (member == name) return variable;
  }
  return nullptr;
}

/// An effect as vma_options.def writes it.
struct Effect {
  VmaEffect kind;
  const char* always = "";
};
constexpr Effect yes{VmaEffect::yes}, cards{VmaEffect::cards}, tcp{VmaEffect::tcp}, no{VmaEffect::no};
constexpr Effect always(const char* value) { return {VmaEffect::always, value}; }

/// Appends `text` in lines of at most 79 characters, each indented by `indent` blanks.
void append_wrapped(std::string& out, std::string_view text, std::size_t indent) {
  constexpr std::size_t kWidth = 79;
  while (!text.empty()) {
    std::size_t length = text.size();
    if (length > kWidth - indent) length = std::min(text.rfind(' ', kWidth - indent), text.size());
    out.append(indent, ' ').append(text.substr(0, length)).append("\n");
    text.remove_prefix(std::min(length + 1, text.size()));
  }
}

}  // namespace

std::vector<VmaOptionRow> vma_option_rows() {
  return {
#define VMA_LEVEL(variable, member, default_value, effect, title, help) \
  VmaOptionRow{#variable,                                               \
               title,                                                   \
               help,                                                    \
               (effect).kind,                                           \
               (effect).always,                                         \
               "",                                                      \
               #default_value,                                          \
               [](const VmaConfig& config) -> std::string { \
                 return name_of(config.member); }},
#define VMA_SPEC(variable, member, default_value, effect, title, help) \
  VmaOptionRow{#variable,       title, help,           (effect).kind,  \
               (effect).always, "",    #default_value, [](const VmaConfig& config) { return title_of(config.member); }},
#define VMA_FLAG(variable, member, default_value, effect, title, help) \
  VmaOptionRow{#variable,                                              \
               title,                                                  \
               help,                                                   \
               (effect).kind,                                          \
               (effect).always,                                        \
               "0 or 1",                                               \
               written(default_value),                                 \
               [](const VmaConfig& config) -> std::string { return config.member ? "Enabled" : "Disabled"; }},
#define VMA_NUMBER(variable, member, type, default_value, minimum, maximum, unit, effect, title, help) \
  VmaOptionRow{#variable,                                                                              \
               title,                                                                                  \
               help,                                                                                   \
               (effect).kind,                                                                          \
               (effect).always,                                                                        \
               allowed_numbers(#minimum, #maximum, unit),                                              \
               #default_value,                                                                         \
               [](const VmaConfig& config) { return std::to_string(config.member); }},
#define VMA_CHOICE(variable, member, default_value, words, effect, title, help) \
  VmaOptionRow{#variable,                                                       \
               title,                                                           \
               help,                                                            \
               (effect).kind,                                                   \
               (effect).always,                                                 \
               allowed_choices(words),                                          \
               #default_value,                                                  \
               [](const VmaConfig& config) { return choice_text(config.member, words); }},
#define VMA_TEXT(variable, member, default_value, effect, title, help) \
  VmaOptionRow{#variable,       title, help,          (effect).kind,   \
               (effect).always, "",    default_value, [](const VmaConfig& config) { return config.member; }},
#define VMA_CPUS(variable, member, default_value, effect, title, help) \
  VmaOptionRow{#variable,       title, help,          (effect).kind,   \
               (effect).always, "",    default_value, [](const VmaConfig& config) { return config.member; }},
#define VMA_POINTER(variable, member, effect, title, help)                                                   \
  VmaOptionRow{#variable, title, help, (effect).kind, (effect).always, "", "", [](const VmaConfig& config) { \
                 return config.member == 0 ? "" : address_text(config.member);                               \
               }},
#include "core/config/vma_options.def"
  };
}

std::string effect_text(const VmaOptionRow& row) {
  switch (row.effect) {
    case VmaEffect::yes: return "yes";
    case VmaEffect::cards: return "only on rings of network cards";
    case VmaEffect::tcp: return "only with VMA_TCP=on";
    case VmaEffect::always: return std::string("always ") + row.always;
    case VmaEffect::no: break;
  }
  return "none";
}

std::vector<VmaOtherName> vma_other_names() {
  return {
#define VMA_RENAMED(variable, now) VmaOtherName{#variable, "Now called " #now "."},
#define VMA_IGNORED(variable, help) VmaOtherName{#variable, "No effect. " help},
#include "core/config/vma_options.def"
  };
}

std::vector<VmaProfileRow> vma_profile_rows() {
  std::vector<VmaProfileRow> out;
  VmaProfileRow* row = nullptr;
  const auto begin = [&](std::string word, int number, const char* title) {
    if (number >= 0 && word != std::to_string(number)) word += ", " + std::to_string(number);
    row = &out.emplace_back(VmaProfileRow{std::move(word), title, {}});
  };
  const auto setting = [&](const char* member, const std::string& value) {
    if (const char* variable = variable_of(member)) row->settings.push_back(std::string(variable) + "=" + value);
  };
#define VMA_PROFILE(enumerator, word, number, title) begin(word, number, title);
#define VMA_PROFILE_SETS(profile, member, value) setting(#member, written(value));
#include "core/config/vma_profiles.def"
  return out;
}

std::string vma_help() {
  std::string out;
  for (const VmaOptionRow& row : vma_option_rows()) {
    out.append(row.variable);
    if (!row.default_value.empty()) out.append("  (default ").append(row.default_value).append(")");
    out.append("\n");
    append_wrapped(out, row.help, 4);
    if (!row.allowed.empty()) append_wrapped(out, "Allowed: " + row.allowed + ".", 4);
    append_wrapped(out, "Effect: " + effect_text(row) + ".", 4);
  }
  for (const VmaOtherName& name : vma_other_names()) {
    out.append(name.variable).append("\n");
    append_wrapped(out, name.remark, 4);
  }
  out.append("\nProfiles of VMA_SPEC\n");
  for (const VmaProfileRow& row : vma_profile_rows()) {
    out.append(row.words).append("  (").append(row.title).append(")\n");
    std::string settings;
    for (const std::string& setting : row.settings) settings.append(settings.empty() ? "" : " ").append(setting);
    append_wrapped(out, settings, 4);
  }
  return out;
}

}  // namespace ringsock::config
