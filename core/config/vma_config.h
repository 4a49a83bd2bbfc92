// The settings of libvma, and the environment variables that they come from.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/rsocket_config.h"
#include "core/config/vma_log_level.h"

namespace ringsock::config {

/// The profiles of VMA_SPEC.
enum class VmaProfile {
#define VMA_PROFILE(enumerator, ...) enumerator,
#include "core/config/vma_profiles.def"
};

/// The address of a void(int level, const char* line) from VMA_LOG_CB_FUNC_PTR; 0: none.
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
  /// The length of receive queues was set, even if to the default.
  bool rx_wre_is_set = false;
  /// The length of send queues was set, even if to the default.
  bool tx_wre_is_set = false;
  /// The number of polls of a receive call was set, even if to the default.
  bool rx_poll_is_set = false;
  bool select_poll_is_set = false;
  bool rx_poll_init_is_set = false;
  bool cq_moderation_is_set = false;
  bool cq_aim_is_set = false;
  bool tx_max_inline_is_set = false;
  bool rx_prefetch_bytes_is_set = false;
  bool select_poll_os_ratio_is_set = false;
  bool select_skip_os_is_set = false;
};

/// Reads the variables whose names begin with VMA_. The profile of VMA_SPEC is applied first, then every variable that
/// is set, then what these imply, e.g. no interrupt moderation where polling never ends.
/// @param environment  "NAME=value" strings, the last pointer null: environ(7). Null: empty; for programs with more
///                     privileges than their caller.
/// @param report       gets one line per variable whose value cannot be used (the default or the profile's is), per old
///                     or unknown name, and per value that others forced to change: variable, reason, what is used.
VmaConfig load_vma_config(const char* const* environment, const Report& report);

/// Reports in one line all variables that are set and have no effect here, behind them those that only TCP over rings
/// would use. A variable of which one value always holds is reported when it has another value.
/// @param config  what load_vma_config() has made of the environment
void report_without_effect(const char* const* environment, const VmaConfig& config, const Report& report);

/// Returns the settings that a profile alone gives.
VmaConfig vma_defaults_of(VmaProfile profile);

/// Returns the CPUs of a text of VMA_INTERNAL_THREAD_AFFINITY: 0x<mask>, or a list 0,2-4. Empty for -1 and for any text
/// that is neither.
std::vector<unsigned> cpus_of(std::string_view text);

/// Returns `path` with its first "%d" replaced by the process id.
std::string with_process_id(std::string path, int pid);

}  // namespace ringsock::config
