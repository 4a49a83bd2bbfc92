#include "tools/vma_stats_options.h"

#include <getopt.h>

#include <array>
#include <cstdint>
#include <string_view>

#include "core/config/vma_log_level.h"
#include "tools/text.h"

namespace ringsock::tools {

namespace {

constexpr std::uint64_t kMostDescriptors = 1 << 20;
constexpr std::uint64_t kMostSeconds = 86400;

std::optional<int> number(const char* text, std::uint64_t least, std::uint64_t most) {
  const auto value = parse_number(text, least, most);
  return value ? std::optional(static_cast<int>(*value)) : std::nullopt;
}

/// Parses "3" or "3-7".
bool add_range(std::string_view text, std::set<int>& out) {
  const std::size_t dash = text.find('-');
  const auto first = number(std::string(text.substr(0, dash)).c_str(), 0, kMostDescriptors);
  const auto last =
      dash == std::string_view::npos ? first : number(std::string(text.substr(dash + 1)).c_str(), 0, kMostDescriptors);
  if (!first || !last || *last < *first) return false;
  for (int fd = *first; fd <= *last; ++fd) out.insert(fd);
  return true;
}

/// Sets an option's value. Returns false when the value is invalid.
bool take_value(int letter, const char* value, VmaStatsOptions& out) {
  switch (letter) {
    case 'p': return (out.pid = number(value, 1, INT32_MAX)).has_value();
    case 'k': out.directory = value; return !out.directory.empty();
    case 'n': out.program = value; return !out.program.empty();
    case 'i': {
      const auto seconds = number(value, 1, kMostSeconds);
      if (seconds) out.interval = std::chrono::seconds(*seconds);
      return seconds.has_value();
    }
    case 'c': {
      const auto cycles = number(value, 0, INT32_MAX);
      if (cycles) out.cycles = static_cast<unsigned>(*cycles);
      return cycles.has_value();
    }
    case 'v': {
      const auto view = number(value, 1, 5);
      if (view) out.view = static_cast<VmaView>(*view);
      return view.has_value();
    }
    case 'd': {
      const auto mode = number(value, 1, 2);
      if (mode) out.counting = *mode == 1 ? runtime::VmaCounting::totals : runtime::VmaCounting::per_second;
      return mode.has_value();
    }
    case 'l': return (out.request.log_level = config::parse_vma_log_level(value)).has_value();
    case 'D': return (out.request.log_details = number(value, 0, 3)).has_value();
    case 'S': return (out.request.dump_fd = number(value, 0, kMostDescriptors)).has_value();
    case 'T': return (out.request.trace_fd = number(value, 0, kMostDescriptors)).has_value();
    case 's': return (out.sockets = parse_descriptors(value)).has_value();
    default: return false;
  }
}

constexpr std::array kOptions{
    option{"pid", required_argument, nullptr, 'p'},
    option{"directory", required_argument, nullptr, 'k'},
    option{"name", required_argument, nullptr, 'n'},
    option{"find_pid", no_argument, nullptr, 'f'},
    option{"forbid_clean", no_argument, nullptr, 'F'},
    option{"interval", required_argument, nullptr, 'i'},
    option{"cycles", required_argument, nullptr, 'c'},
    option{"view", required_argument, nullptr, 'v'},
    option{"details", required_argument, nullptr, 'd'},
    option{"zero", no_argument, nullptr, 'z'},
    option{"log_level", required_argument, nullptr, 'l'},
    option{"fd_dump", required_argument, nullptr, 'S'},
    option{"trace", required_argument, nullptr, 'T'},
    option{"details_level", required_argument, nullptr, 'D'},
    option{"sockets", required_argument, nullptr, 's'},
    option{"version", no_argument, nullptr, 'V'},
    option{"help", no_argument, nullptr, 'h'},
    option{nullptr, 0, nullptr, 0},
};

/// Takes the level behind the option's value: "-S 5 debug".
bool take_dump_level(int argc, char** argv, VmaStatsOptions& out) {
  if (::optind >= argc || argv[::optind][0] == '-') return true;
  const auto level = config::parse_vma_log_level(argv[::optind]);
  if (!level) return false;
  out.request.dump_level = *level;
  ++::optind;
  return true;
}

/// Takes the number behind the option's value: "-T 5 100".
bool take_trace_segments(int argc, char** argv, VmaStatsOptions& out) {
  if (::optind >= argc || argv[::optind][0] == '-') return true;
  const auto segments = number(argv[::optind], 1, runtime::kVmaMostTraced);
  if (!segments) return false;
  out.request.trace_segments = *segments;
  ++::optind;
  return true;
}

}  // namespace

std::optional<std::set<int>> parse_descriptors(const std::string& text) {
  std::set<int> out;
  std::string_view rest = text;
  for (bool more = true; more;) {
    const std::size_t comma = rest.find(',');
    if (!add_range(rest.substr(0, comma), out)) return std::nullopt;
    more = comma != std::string_view::npos;
    if (more) rest.remove_prefix(comma + 1);
  }
  return out;
}

VmaStatsParsed parse_vma_stats_options(int argc, char** argv, const std::string& default_directory) {
  VmaStatsOptions out;
  out.directory = default_directory;
  for (int letter;
       (letter = ::getopt_long(argc, argv, "p:k:n:fFi:c:v:d:zl:S:T:D:s:Vh", kOptions.data(), nullptr)) != -1;) {
    switch (letter) {
      case 'f': break;  // the default
      case 'F': out.clean = false; break;
      case 'z': out.zero = true; break;
      case 'V': out.version = true; break;
      case 'h': out.help = true; break;
      case '?': return {};
      default:
        if (!take_value(letter, ::optarg, out))
          return {.problem = std::string("wrong value for -") + static_cast<char>(letter) + ": " + ::optarg};
    }
    if (letter == 'S' && !take_dump_level(argc, argv, out))
      return {.problem = std::string("-S: no log level: ") + argv[::optind]};
    if (letter == 'T' && !take_trace_segments(argc, argv, out))
      return {.problem = std::string("-T: no number of segments: ") + argv[::optind]};
  }
  if (::optind < argc) return {.problem = std::string("what is ") + argv[::optind] + "?"};
  return {.options = out};
}

void print_vma_stats_usage(std::FILE* out) {
  std::fprintf(out,
               "usage: vma_stats [options]\n"
               "Shows what a process with libvma does, and changes how it logs.\n"
               "  -p, --pid N            show the process with this pid\n"
               "  -n, --name NAME        show the process of this program\n"
               "  -f, --find_pid         show the process with libvma that started last (default)\n"
               "  -k, --directory DIR    the process's VMA_STATS_SHMEM_DIR (default: the variable's value, or /tmp/)\n"
               "  -F, --forbid_clean     keep the files of processes that have ended\n"
               "  -i, --interval N       read the counters every N seconds (default: 1)\n"
               "  -c, --cycles N         read them N times (default: 0, until stopped)\n"
               "  -v, --view N           1 basic (default), 2 extra, 3 full, 4 groups, 5 as netstat\n"
               "  -d, --details N        1 totals (default), 2 rates per second\n"
               "  -s, --sockets LIST     show only these descriptors: 4-16 or 1,9\n"
               "  -z, --zero             reset the counters\n"
               "  -l, --log_level L      set the log level, by a name of VMA_TRACELEVEL\n"
               "  -D, --details_level N  set VMA_LOG_DETAILS, 0 to 3\n"
               "  -S, --fd_dump FD [L]   log a socket's counters at level L (default: info); 0: all\n"
               "  -T, --trace FD [N]     log the next N segments of a TCP connection on a ring (default: 1000)\n"
               "  -V, --version          show the version\n"
               "  -h, --help             show this help\n");
}

}  // namespace ringsock::tools
