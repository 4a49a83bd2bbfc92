// The rules that decide which sockets libvma takes and which it leaves to the kernel: the file libvma.conf, and rules
// added by the program.
#pragma once

#include <array>
#include <atomic>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "core/base/socket_address.h"
#include "core/config/rsocket_config.h"
#include "core/config/vma_line.h"

namespace ringsock::config {

/// The default of VMA_APPLICATION_ID. It only matches the user id *.
inline constexpr std::string_view kDefaultVmaApplicationId = "VMA_DEFAULT_APPLICATION_ID";
/// The default of VMA_CONFIG_FILE.
inline constexpr const char* kVmaConfigFile = "/etc/libvma.conf";

/// The rules that concern one process.
///
/// A line belongs to the block of the application-id line above it; lines above the first such line belong to an
/// implicit block "* *". Blocks with the same words are one block. Only the first block that matches this process is
/// used. In it the first rule that matches decides; without a match libvma takes the socket. libvma.conf(5) has the
/// details.
///
/// Threads: parse() and load() must be called before the object is shared. Then any thread may ask and add() at any
/// time.
class VmaRules {
 public:
  /// @param program         as program_invocation_short_name(3) gives it
  /// @param application_id  VMA_APPLICATION_ID, or its default
  VmaRules(std::string_view program, std::string_view application_id)
      : program_(program), application_id_(application_id) {}
  VmaRules(const VmaRules&) = delete;
  VmaRules& operator=(const VmaRules&) = delete;
  ~VmaRules();

  /// Adds the rules of a file's text. `report` gets one line per wrong line, which is skipped, and per line that has no
  /// effect: file, line number, reason.
  /// @param file  what it is called in reports
  void parse(std::string_view text, const std::string& file, const Report& report);
  /// Adds the rules of the file at `path`. A file that cannot be read is reported. A missing file is reported only when
  /// the user has chosen it (`is_chosen`).
  void load(const char* path, bool is_chosen, const Report& report);
  /// Adds one line, with or without newline, before all rules so far: vma_api_t::add_conf_rule(). A use line concerns
  /// this process, unless the last application-id line that was added is for others. A wrong line changes nothing.
  /// Errors: EINVAL, reported.
  Status add(std::string_view line, const Report& report);

  /// @param first   the first address of the role, see VmaRole
  /// @param second  the second, if it is known; else only rules match that do not ask for it
  [[nodiscard]] VmaTransport decide(VmaRole role, const SocketAddress& first,
                                    const SocketAddress* second = nullptr) const;
  /// Returns os when no address can lead to rings for a socket of that type: it need not be watched then.
  /// @param type  SOCK_STREAM or SOCK_DGRAM
  [[nodiscard]] VmaTransport decide_socket(int type) const;

 private:
  struct Added {
    VmaRule rule;
    Added* next;
  };

  /// Calls `visit(rule)` for the added rules, newest first, then for the file's, until it returns something, which is
  /// returned.
  template <class Visit>
  VmaTransport first_answer(VmaRole role, Visit visit) const;
  [[nodiscard]] VmaTransport decide_for_all(VmaRole role) const;
  [[nodiscard]] bool is_for_us(const VmaApplication& application) const;
  void keep(VmaRule rule, const std::string& where, const Report& report);

  std::string program_;
  std::string application_id_;
  std::array<std::vector<VmaRule>, kVmaRoles> from_files_;
  std::array<std::atomic<Added*>, kVmaRoles> added_{};
  std::atomic<bool> added_lines_are_ours_{true};
};

}  // namespace ringsock::config
