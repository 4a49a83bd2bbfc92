// rsstat: shows the processes that use ringsock, and their sockets.
#include <getopt.h>
#include <strings.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/clock.h"
#include "core/statistics/statistics_reader.h"
#include "libvmacompat/statistics/vma_page_reader.h"
#include "tools/statistics_text.h"
#include "tools/text.h"

namespace ringsock::tools {
namespace {

struct Options {
  bool json = false;
  std::optional<std::chrono::milliseconds> interval;  ///< absent: once
  std::vector<std::uint64_t> pids;
  std::vector<std::string> programs;  ///< prefixes of their names, in upper or lower case
};

void print_usage(std::FILE* out) {
  std::fprintf(out,
               "usage: rsstat [options]\n"
               "Lists this user's processes that use ringsock, and their sockets; for root, all users'.\n"
               "  -j, --json            print JSON\n"
               "  -w, --watch [SECONDS] repeat every SECONDS seconds (default: 1)\n"
               "  -p, --pid PID         only this process; may be repeated\n"
               "  -n, --program NAME    only programs whose names begin with NAME; may be repeated\n"
               "  -h, --help            show this help\n");
}

/// Parses seconds, "2" or "0.5", at least a millisecond.
std::optional<std::chrono::milliseconds> parse_seconds(const char* text) {
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (end == text || *end != '\0' || !(seconds >= 0.001 && seconds <= 86400)) return std::nullopt;
  return std::chrono::milliseconds(static_cast<long>(seconds * 1000));
}

bool apply(int letter, Options& options) {
  switch (letter) {
    case 'j': options.json = true; return true;
    case 'n': options.programs.emplace_back(::optarg); return true;
    case 'w':
      options.interval = ::optarg == nullptr ? std::chrono::seconds(1) : parse_seconds(::optarg);
      return options.interval.has_value();
    case 'p': {
      const auto pid = parse_number(::optarg, 1, UINT32_MAX);
      if (pid) options.pids.push_back(*pid);
      return pid.has_value();
    }
    default: return false;
  }
}

int refuse(const std::string& message) {
  if (!message.empty()) std::fprintf(stderr, "rsstat: %s\n", message.c_str());
  print_usage(stderr);
  return EXIT_FAILURE;
}

/// Returns the options, or sets the exit status.
std::optional<Options> parse(int argc, char** argv, int& status) {
  constexpr std::array kOptions{
      option{"json", no_argument, nullptr, 'j'},      option{"watch", optional_argument, nullptr, 'w'},
      option{"pid", required_argument, nullptr, 'p'}, option{"program", required_argument, nullptr, 'n'},
      option{"help", no_argument, nullptr, 'h'},      option{nullptr, 0, nullptr, 0},
  };
  Options options;
  for (int letter; (letter = ::getopt_long(argc, argv, "jw::p:n:h", kOptions.data(), nullptr)) != -1;) {
    if (letter == 'h') {
      print_usage(stdout);
      status = EXIT_SUCCESS;
      return std::nullopt;
    }
    if (!apply(letter, options)) {
      status =
          refuse(letter == '?' ? "" : std::string("wrong value for -") + static_cast<char>(letter) + ": " + ::optarg);
      return std::nullopt;
    }
  }
  if (::optind == argc) return options;
  // "-w 2": getopt takes an optional value only when it is attached.
  if (options.interval == std::chrono::seconds(1)) {
    const char* const value = argv[::optind++];
    options.interval = parse_seconds(value);
    if (!options.interval) {
      status = refuse(std::string("wrong value for -w: ") + value);
      return std::nullopt;
    }
  }
  if (::optind < argc) {
    status = refuse(std::string("what is ") + argv[::optind] + "?");
    return std::nullopt;
  }
  return options;
}

template <class Process>
bool is_wanted(const Process& process, const Options& options) {
  const auto begins_like = [&](const std::string& start) {
    return ::strncasecmp(process.program.c_str(), start.c_str(), start.size()) == 0;
  };
  const auto& pids = options.pids;
  return (pids.empty() || std::find(pids.begin(), pids.end(), static_cast<std::uint64_t>(process.pid)) != pids.end()) &&
         (options.programs.empty() || std::any_of(options.programs.begin(), options.programs.end(), begins_like));
}

Users look(const Options& options) {
  std::vector<std::string> refused;
  Users users{runtime::read_all_statistics(runtime::kStatisticsDirectory, refused), runtime::read_all_vma_pages()};
  for (const std::string& line : refused) std::fprintf(stderr, "rsstat: %s\n", line.c_str());
  const auto is_other = [&](const auto& process) { return !is_wanted(process, options); };
  std::erase_if(users.processes, is_other);
  std::erase_if(users.vma, is_other);
  return users;
}

/// Returns false when the reader has closed the pipe.
bool print(const std::string& text) {
  if (std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0) return true;
  if (errno != EPIPE) std::fprintf(stderr, "rsstat: standard output: %s\n", std::strerror(errno));
  return false;
}

std::string table_or_nothing(const Users& users, const Options& options) {
  std::string table = statistics_table(users);
  if (!table.empty()) return table;
  return options.pids.empty() && options.programs.empty() ? "no process uses ringsock\n"
                                                          : "no such process uses ringsock\n";
}

int show_once(const Options& options) {
  const Users users = look(options);
  return print(options.json ? statistics_json(users, 2) : table_or_nothing(users, options)) ? EXIT_SUCCESS
                                                                                            : EXIT_FAILURE;
}

/// Repeats the output until a signal, or until the reader closes the pipe.
int watch(const Options& options) {
  const char* const new_page = ::isatty(STDOUT_FILENO) != 0 ? "\033[H\033[2J" : "";
  Users before;
  Nanos looked_before{};
  for (;;) {
    const Nanos looked = monotonic_now();
    Users users = look(options);
    const double seconds = std::chrono::duration<double>(looked - looked_before).count();
    const std::string text = options.json ? statistics_json(users, -1)
                                          : new_page + table_or_nothing(users, options) + "\n" +
                                                statistics_rates(before, users, seconds) + "\n";
    if (!print(text)) return EXIT_FAILURE;
    before = std::move(users);
    looked_before = looked;
    const auto seconds_part = std::chrono::duration_cast<std::chrono::seconds>(*options.interval);
    const timespec pause{seconds_part.count(), std::chrono::nanoseconds(*options.interval - seconds_part).count()};
    ::clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, nullptr);
  }
}

}  // namespace
}  // namespace ringsock::tools

int main(int argc, char** argv) {
  using namespace ringsock::tools;
  int status = 0;
  const auto options = parse(argc, argv, status);
  if (!options) return status;
  return options->interval ? watch(*options) : show_once(*options);
}
