#include "core/config/vma_rules.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "core/config/option_file.h"

namespace ringsock::config {

namespace {

/// Larger than any file written by hand.
constexpr std::size_t kMaxRuleFileBytes = std::size_t{256} * 1024;

constexpr std::size_t index_of(VmaRole role) { return static_cast<std::size_t>(role); }

bool matches(const VmaRule& rule, const SocketAddress& first, const SocketAddress* second) {
  if (!rule.first.matches(first)) return false;
  if (!rule.second || rule.second->matches_all()) return true;
  return second != nullptr && rule.second->matches(*second);
}

/// Returns a remark on a line that is correct but may not do what its writer expects; empty for none.
std::string remark_on(const VmaRule& rule) {
  if (!rule.transport) return "only vma, os and * have an effect";
  if (rule.second && !has_second_tuple(rule.role))
    return std::string(name_of(rule.role)) + " has one address; the second is ignored";
  return "";
}

std::string place(const std::string& file, std::size_t line) {
  return "Error (line:" + std::to_string(line) + ") : " + file + ": ";
}

}  // namespace

VmaRules::~VmaRules() {
  for (auto& head : added_) {
    for (Added* each = head.load(std::memory_order_relaxed); each != nullptr;) delete std::exchange(each, each->next);
  }
}

bool VmaRules::is_for_us(const VmaApplication& application) const {
  return ::fnmatch(application.program.c_str(), program_.c_str(), 0) == 0 &&
         (application.id == application_id_ || application.id == "*" || application_id_ == "*");
}

void VmaRules::keep(VmaRule rule, const std::string& where, const Report& report) {
  if (const std::string remark = remark_on(rule); !remark.empty()) report(where + remark);
  if (!rule.transport) return;
  if (!has_second_tuple(rule.role)) rule.second.reset();
  from_files_[index_of(rule.role)].push_back(rule);
}

void VmaRules::parse(std::string_view text, const std::string& file, const Report& report) {
  VmaApplication current{"*", "*"};
  std::optional<VmaApplication> deciding;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const VmaLine parsed = parse_vma_line(line);
    if (const auto* problem = std::get_if<VmaProblem>(&parsed))
      report(place(file, number) + problem->text + "; the line is skipped");
    const auto* application = std::get_if<VmaApplication>(&parsed);
    const auto* rule = std::get_if<VmaRule>(&parsed);
    if (application != nullptr) current = *application;
    if (application == nullptr && rule == nullptr) continue;
    if (!deciding && is_for_us(current)) deciding = current;
    const bool decides = deciding == current;
    if (application != nullptr && !decides && is_for_us(current))
      report(place(file, number) +
             "an application-id line above is for this program, too, and decides; the rules "
             "below this one do not count");
    if (rule != nullptr && decides) keep(*rule, place(file, number), report);
  }
  if (!deciding && application_id_ != kDefaultVmaApplicationId)
    report(file + ": no application-id line is for the program " + printable(program_) + " with the id " +
           printable(application_id_));
}

void VmaRules::load(const char* path, bool is_chosen, const Report& report) {
  const auto text = read_option_file(AT_FDCWD, path, kMaxRuleFileBytes);
  const std::string file = path;
  if (text && *text) return parse(**text, file, report);
  if (text) {
    if (is_chosen) report("libvma Error: No access to " + file + ": there is no such file; no rule counts");
  } else if (text.error().code == EINVAL) {
    report("FAILED to read VMA configuration file. " + file + " is not a regular file.");
  } else {
    report("libvma Error: No access to " + file + ": " + std::strerror(text.error().code) + "; no rule of it counts");
  }
}

Status VmaRules::add(std::string_view line, const Report& report) {
  const std::string where = place("add_conf_rule", 1);
  while (line.ends_with('\n')) line.remove_suffix(1);
  VmaLine parsed = line.find('\n') == std::string_view::npos ? parse_vma_line(line) : VmaProblem{"more than one line"};
  if (const auto* problem = std::get_if<VmaProblem>(&parsed)) {
    report(where + problem->text + "; nothing is changed");
    return Error{EINVAL, "add_conf_rule"};
  }
  if (const auto* application = std::get_if<VmaApplication>(&parsed))
    added_lines_are_ours_.store(is_for_us(*application), std::memory_order_relaxed);
  auto* rule = std::get_if<VmaRule>(&parsed);
  if (rule == nullptr) return ok();
  if (const std::string remark = remark_on(*rule); !remark.empty()) report(where + remark);
  if (!rule->transport || !added_lines_are_ours_.load(std::memory_order_relaxed)) return ok();
  if (!has_second_tuple(rule->role)) rule->second.reset();
  auto& head = added_[index_of(rule->role)];
  auto* added = new Added{*rule, head.load(std::memory_order_relaxed)};
  while (!head.compare_exchange_weak(added->next, added, std::memory_order_release, std::memory_order_relaxed)) {
  }
  return ok();
}

template <class Visit>
VmaTransport VmaRules::first_answer(VmaRole role, Visit visit) const {
  const Added* added = added_[index_of(role)].load(std::memory_order_acquire);
  for (; added != nullptr; added = added->next) {
    if (const std::optional<VmaTransport> answer = visit(added->rule)) return *answer;
  }
  for (const VmaRule& rule : from_files_[index_of(role)]) {
    if (const std::optional<VmaTransport> answer = visit(rule)) return *answer;
  }
  return VmaTransport::vma;
}

VmaTransport VmaRules::decide(VmaRole role, const SocketAddress& first, const SocketAddress* second) const {
  return first_answer(
      role, [&](const VmaRule& rule) { return matches(rule, first, second) ? rule.transport : std::nullopt; });
}

VmaTransport VmaRules::decide_for_all(VmaRole role) const {
  return first_answer(role, [](const VmaRule& rule) -> std::optional<VmaTransport> {
    const bool for_all = rule.first.matches_all() && (!rule.second || rule.second->matches_all());
    return for_all || rule.transport == VmaTransport::vma ? rule.transport : std::nullopt;
  });
}

VmaTransport VmaRules::decide_socket(int type) const {
  const bool stream = type == SOCK_STREAM;
  const VmaRole receiving = stream ? VmaRole::tcp_server : VmaRole::udp_receiver;
  const VmaRole sending = stream ? VmaRole::tcp_client : VmaRole::udp_sender;
  const bool all_os = decide_for_all(receiving) == VmaTransport::os && decide_for_all(sending) == VmaTransport::os;
  return all_os ? VmaTransport::os : VmaTransport::vma;
}

}  // namespace ringsock::config
