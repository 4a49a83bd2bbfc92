// Which sockets libvma takes and which it leaves to the kernel: the file libvma.conf, and rules added by the program.
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

/// VMA_APPLICATION_ID's default: it only matches the user id *.
inline constexpr std::string_view kDefaultVmaApplicationId = "VMA_DEFAULT_APPLICATION_ID";
/// VMA_CONFIG_FILE's default.
inline constexpr const char* kVmaConfigFile = "/etc/libvma.conf";

/// The rules that concern one process.
///
/// Lines belong to the block of the application-id line above them, those above any to an implicit block "* *"; blocks
/// with the same words are one. Of the blocks that match this process the first alone decides, and in it the first rule
/// that matches; without any, the socket is ours. libvma.conf(5) has the details.
///
/// Threads: parse() and load() before the object is shared; then everybody may ask and add() at any time.
class VmaRules {
 public:
  /// @param program         as program_invocation_short_name(3) gives it
  /// @param application_id  VMA_APPLICATION_ID, or its default
  VmaRules(std::string_view program, std::string_view application_id)
      : program_(program), application_id_(application_id) {}
  VmaRules(const VmaRules&) = delete;
  VmaRules& operator=(const VmaRules&) = delete;
  ~VmaRules();

  /// Takes in a file's text. `report` gets one line per wrong line, which is skipped, and per line that has no effect:
  /// file, line number, reason.
  /// @param file  what it is called in reports
  void parse(std::string_view text, const std::string& file, const Report& report);
  /// Takes in the file at `path`. One that cannot be read is reported; that there is none, only when the user has
  /// chosen it (`is_chosen`).
  void load(const char* path, bool is_chosen, const Report& report);
  /// Adds one line, with or without newline, before all rules so far: vma_api_t::add_conf_rule(). A use line concerns
  /// this process, unless the last application-id line that was added is for others. A wrong line changes nothing.
  /// Errors: EINVAL, reported.
  Status add(std::string_view line, const Report& report);

  /// @param first   the first address of the role, see VmaRole
  /// @param second  the second, if it is known; else only rules match that do not ask for it
  [[nodiscard]] VmaTransport decide(VmaRole role, const SocketAddress& first,
                                    const SocketAddress* second = nullptr) const;
  /// os when no address can make a socket of that type ours: it need not be watched at all.
  /// @param type  SOCK_STREAM or SOCK_DGRAM
  [[nodiscard]] VmaTransport decide_socket(int type) const;

 private:
  struct Added {
    VmaRule rule;
    Added* next;
  };

  /// Calls `visit(rule)`, newest added first, then the file's, until it returns something; that is returned.
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
