// vma_options.def as text: for the start-up listing, the help and libvma(7).
#pragma once

#include <string>
#include <vector>

#include "core/config/vma_config.h"

namespace ringsock::config {

/// The effect of a variable in this implementation.
enum class VmaEffect {
  yes,
  cards,   ///< on rings of network cards
  tcp,     ///< for TCP over rings (VMA_TCP=on)
  always,  ///< libvma always does what one value says
  no,      ///< accepted, without effect
};

/// One variable.
struct VmaOptionRow {
  const char* variable;
  const char* title;  ///< VMA's
  const char* help;   ///< sentences
  VmaEffect effect;
  const char* always;                             ///< the value that holds, for VmaEffect::always
  std::string allowed;                            ///< "0..1024 sockets"; empty: any text, or the help tells
  std::string default_value;                      ///< as it is written in the environment; may be empty
  std::string (*value)(const VmaConfig& config);  ///< as the listing shows it: "0 (Ring per interface)"
};
/// Returns the variables in the table's order, without old and ignored names.
std::vector<VmaOptionRow> vma_option_rows();

/// Returns the effect in a few words: "yes", "always 1".
std::string effect_text(const VmaOptionRow& row);

/// A name that stands for another name, or that has no effect.
struct VmaOtherName {
  const char* variable;
  std::string remark;  ///< a sentence
};
std::vector<VmaOtherName> vma_other_names();

/// A profile: its words and what it sets.
struct VmaProfileRow {
  std::string words;  ///< "latency, 15"
  const char* title;
  std::vector<std::string> settings;  ///< "VMA_RX_POLL=-1"; what has no variable is left out
};
std::vector<VmaProfileRow> vma_profile_rows();

/// Returns the list of variables for a terminal, in lines of at most 79 characters.
std::string vma_help();

}  // namespace ringsock::config
