// The parts of libvma(7) that are made from vma_options.def and vma_profiles.def.
#pragma once

#include <string>

#include "conf/samples.h"
#include "core/config/vma_option_table.h"

namespace ringsock::conf {

namespace detail {

/// Sentences, names and values as they are: only minus signs that can be copied.
inline std::string roff_text(std::string text) {
  replace_all(text, "-", "\\-");
  return text;
}

}  // namespace detail

inline std::string vma_environment_section() {
  std::string out;
  for (const config::VmaOptionRow& row : config::vma_option_rows()) {
    out.append(".TP\n.B ").append(row.variable).append("\n").append(detail::roff_text(row.help)).append("\n");
    if (!row.allowed.empty()) out.append("Allowed: ").append(detail::roff(row.allowed)).append(".\n");
    if (!row.default_value.empty()) out.append("Default: ").append(detail::roff_text(row.default_value)).append(".\n");
  }
  for (const config::VmaOtherName& name : config::vma_other_names())
    out.append(".TP\n.B ").append(name.variable).append("\n").append(detail::roff_text(name.remark)).append("\n");
  return out;
}

/// The table of all variables with their effect.
inline std::string vma_effects_section() {
  std::string out = ".nf\n.ta 38n\nvariable\teffect\n";
  for (const config::VmaOptionRow& row : config::vma_option_rows())
    out.append(row.variable).append("\t").append(config::effect_text(row)).append("\n");
  return out.append(".fi\n");
}

inline std::string vma_profiles_section() {
  std::string out;
  for (const config::VmaProfileRow& row : config::vma_profile_rows()) {
    out.append(".TP\n.B ").append(detail::roff_text(row.words)).append("\n").append(row.title).append(".\n");
    for (const std::string& setting : row.settings) out.append(detail::roff_text(setting)).append("\n");
  }
  return out;
}

}  // namespace ringsock::conf
