// The settings of libvma, and the environment variables that they come from.
#pragma once

#include <cstdint>
#include <string>

#include "core/config/rsocket_config.h"
#include "core/config/vma_log_level.h"

namespace ringsock::config {

/// VMA_SPEC.
enum class VmaProfile {
#define VMA_PROFILE(enumerator, ...) enumerator,
#include "core/config/vma_profiles.def"
};

/// void(int level, const char* line); 0: none. Of VMA_LOG_CB_FUNC_PTR.
using VmaCallbackAddress = std::uintptr_t;

/// One member per variable of vma_options.def, with its default.
// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): they stand in the table's order, and there is one of it
struct VmaConfig {
#define VMA_LEVEL(variable, member, default_value, ...) VmaLogLevel member = VmaLogLevel::default_value;
#define VMA_SPEC(variable, member, default_value, ...) VmaProfile member = VmaProfile::default_value;
#define VMA_FLAG(variable, member, default_value, ...) bool member = default_value;
#define VMA_NUMBER(variable, member, type, default_value, ...) type member = default_value;
#define VMA_CHOICE(variable, member, default_value, ...) std::int32_t member = default_value;
#define VMA_TEXT(variable, member, default_value, ...) std::string member = default_value;
#define VMA_CPUS(variable, member, default_value, ...) std::string member = default_value;
#define VMA_POINTER(variable, member, ...) VmaCallbackAddress member = 0;
#define VMA_INTERNAL(member, type, default_value) type member = default_value;
#include "core/config/vma_options.def"
  /// Somebody has said how long receive queues are, if only what is the default.
  bool rx_wre_is_set = false;
  /// The same of send queues.
  bool tx_wre_is_set = false;
  /// The same of how long calls look at rings.
  bool rx_poll_is_set = false;
  bool select_poll_is_set = false;
};

/// Reads the variables whose names begin with VMA_. First the profile of VMA_SPEC, then every variable that is set;
/// then what they imply, e.g. no interrupt moderation where polling never ends.
/// @param environment  "NAME=value" strings, the last pointer null: environ(7). Null: empty; for programs with more
///                     privileges than their caller.
/// @param report       gets one line per variable whose value cannot be used (the default or the profile's is), per old
///                     or unknown name, and per value that others forced to change: variable, reason, what is used.
VmaConfig load_vma_config(const char* const* environment, const Report& report);

/// One line for all variables that are set and have no effect here, and one for those that TCP over rings would look
/// at: nobody should believe that a setting acts which does not.
void report_without_effect(const char* const* environment, const Report& report);

/// The settings as a profile alone makes them.
VmaConfig vma_defaults_of(VmaProfile profile);

/// `path` with the first "%d" in it replaced by the process id.
std::string with_process_id(std::string path, int pid);

}  // namespace ringsock::config
