// vma_stats: shows what a process with libvma does.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

#include "config.h"
#include "core/base/clock.h"
#include "core/config/vma_config.h"
#include "core/statistics/statistics_file.h"
#include "libvmacompat/statistics/vma_page_reader.h"
#include "libvmacompat/statistics/vma_views.h"
#include "tools/vma_stats_options.h"

namespace ringsock::tools {
namespace {

using runtime::VmaPage;
using runtime::VmaSnapshot;

/// How long a look waits for the answer of a process, which need not answer.
constexpr std::chrono::milliseconds kAnswer{200};
/// How long a change waits for it: a process that is not stopped answers, if late on a busy host.
constexpr std::chrono::seconds kAnswerToChange{5};

int refuse(const std::string& message) {
  std::fprintf(stderr, "vma_stats: %s\n", message.c_str());
  return EXIT_FAILURE;
}

std::string text_of(const Error& error) { return std::string(error.where) + ": " + std::strerror(error.code); }

struct Found {
  std::optional<VmaPage> page{};
  std::string problem{};
};

/// Finds the selected process, of several the one that started last.
Found find(const VmaStatsOptions& options) {
  Found out;
  std::int64_t newest = 0;
  std::string others;
  for (const runtime::VmaLink& link : runtime::find_vma_pages(options.directory.c_str(), options.clean)) {
    if (options.pid && *options.pid != link.pid) continue;
    // Opened for requests if permitted; reading needs less permission.
    auto page = VmaPage::open(link.name.c_str(), true);
    if (!page) page = VmaPage::open(link.name.c_str(), false);
    const auto now = page ? page->read() : Result<VmaSnapshot>(page.error());
    if (!now) {
      const bool has_none = now.error().code == ESRCH || now.error().code == EBUSY;  // not any more, or not yet
      if (!has_none) out.problem = "process " + std::to_string(link.pid) + ": " + text_of(now.error());
      continue;
    }
    if (!options.program.empty() && now->program != options.program) continue;
    others += " " + std::to_string(link.pid);
    if (now->started_ns <= newest) continue;
    newest = now->started_ns;
    out.page.emplace(*std::move(page));
  }
  if (out.page && others != " " + std::to_string(out.page->pid()))
    std::fprintf(stderr, "vma_stats: showing process %d of%s\n", out.page->pid(), others.c_str());
  if (!out.page && out.problem.empty()) out.problem = "no such process with libvma in " + options.directory;
  return out;
}

std::string view_of(const VmaSnapshot& snapshot, const VmaStatsOptions& options) {
  switch (options.view) {
    case VmaView::basic: return vma_basic_view(snapshot, options.counting);
    case VmaView::extra: return vma_extra_view(snapshot, options.counting);
    case VmaView::full: return vma_full_view(snapshot, options.counting);
    case VmaView::groups: return vma_groups_view(snapshot);
    case VmaView::netstat: return vma_netstat_view(snapshot);
  }
  return {};
}

/// Returns false when the reader has closed the pipe.
bool print(const std::string& text) {
  if (std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0) return true;
  if (errno != EPIPE) std::fprintf(stderr, "vma_stats: standard output: %s\n", std::strerror(errno));
  return false;
}

Result<VmaSnapshot> look(const VmaPage& page, const VmaStatsOptions& options) {
  // If the process does not answer, values that it does not count continuously are those of its last answer.
  static_cast<void>(page.ask({}, kAnswer));
  auto now = page.read();
  if (now && options.sockets)
    std::erase_if(now->sockets, [&](const auto& socket) { return !options.sockets->contains(socket.fd); });
  return now;
}

/// Shows the statistics until the number of cycles is reached, a signal comes, or the process ends.
int show(const VmaPage& page, const VmaStatsOptions& options) {
  const bool is_rates = options.counting == runtime::VmaCounting::per_second;
  const timespec pause{std::chrono::duration_cast<std::chrono::seconds>(options.interval).count(), 0};
  const char* const new_screen = options.cycles == 0 && ::isatty(STDOUT_FILENO) != 0 ? "\033[H\033[2J" : "";
  std::optional<VmaSnapshot> before;
  Nanos looked_before{};
  for (unsigned shown = 0; options.cycles == 0 || shown < options.cycles;) {
    const Nanos looked = monotonic_now();
    auto now = look(page, options);
    const bool is_there = now && runtime::is_process_there(page.pid());
    if (!is_there)
      return shown > 0 || before ? EXIT_SUCCESS : refuse(text_of(now ? Error{ESRCH, "process"} : now.error()));
    if (!is_rates || before) {
      const double seconds = std::chrono::duration<double>(looked - looked_before).count();
      if (!print(new_screen + view_of(is_rates ? vma_rates(*before, *now, seconds) : *now, options)))
        return EXIT_FAILURE;
      ++shown;
    }
    before = *std::move(now);
    looked_before = looked;
    if (options.cycles == 0 || shown < options.cycles) ::clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, nullptr);
  }
  return EXIT_SUCCESS;
}

int change(const VmaPage& page, const VmaStatsOptions& options) {
  if (options.zero) {
    if (Status asked = page.ask({}, kAnswerToChange); !asked && asked.error().code != ETIMEDOUT)
      return refuse(text_of(asked.error()));
    if (Status zeroed = page.zero(); !zeroed) return refuse(text_of(zeroed.error()));
  }
  const auto& request = options.request;
  if (!request.log_level && !request.log_details && !request.dump_fd && !request.trace_fd) return EXIT_SUCCESS;
  if (Status done = page.ask(request, kAnswerToChange); !done) {
    if (done.error().code != ETIMEDOUT) return refuse(text_of(done.error()));
    return refuse("process " + std::to_string(page.pid()) +
                  " has not answered: it will when it goes on, and has a ring");
  }
  return EXIT_SUCCESS;
}

std::string default_directory() {
  const char* const said = std::getenv("VMA_STATS_SHMEM_DIR");
  return said != nullptr && *said != '\0' ? said : config::VmaConfig().stats_shmem_dir;
}

}  // namespace
}  // namespace ringsock::tools

int main(int argc, char** argv) {
  using namespace ringsock::tools;
  const auto parsed = parse_vma_stats_options(argc, argv, default_directory());
  if (!parsed.options) {
    if (!parsed.problem.empty()) std::fprintf(stderr, "vma_stats: %s\n", parsed.problem.c_str());
    print_vma_stats_usage(stderr);
    return EXIT_FAILURE;
  }
  const VmaStatsOptions& options = *parsed.options;
  if (options.help) {
    print_vma_stats_usage(stdout);
    return EXIT_SUCCESS;
  }
  if (options.version) {
    std::printf("vma_stats 9.8.84 (" PACKAGE_STRING ")\n");
    return EXIT_SUCCESS;
  }
  const Found found = find(options);
  if (!found.page) return refuse(found.problem);
  return options.changes_process() ? change(*found.page, options) : show(*found.page, options);
}
