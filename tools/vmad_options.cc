#include "tools/vmad_options.h"

#include <getopt.h>

#include <array>
#include <cstdint>

#include "tools/text.h"

namespace ringsock::tools {

namespace {

constexpr int kConsole = 1000, kForceReset = 1001, kSocket = 1002, kLockFile = 1003;
constexpr std::uint64_t kMostMilliseconds = 3'600'000;

bool take_path(const char* value, std::string& out) {
  out = value;
  return out.starts_with('/');
}

/// Takes a number. Returns false for anything else.
template <class Out>
bool take_number(const char* value, std::uint64_t least, std::uint64_t most, Out& out) {
  const auto number = parse_number(value, least, most);
  if (number) out = Out(static_cast<std::int64_t>(*number));
  return number.has_value();
}

/// Sets an option's value. Returns false when the value is invalid.
bool take_value(int letter, const char* value, VmadOptions& out) {
  std::int64_t size_of_table = 0;  // tables grow by themselves here
  switch (letter) {
    case 'n': return take_path(value, out.notify_directory);
    case kSocket: return take_path(value, out.socket);
    case kLockFile: return take_path(value, out.lock_file);
    case 'v': return take_number(value, 0, 8, out.verbosity);
    case 'r': return take_number(value, 1, kMostMilliseconds, out.retry_interval);
    case 'p':
    case 'f': return take_number(value, 1, INT32_MAX, size_of_table);
    default: return false;
  }
}

constexpr std::array kOptions{
    option{"console", no_argument, nullptr, kConsole},
    option{"notify-dir", required_argument, nullptr, 'n'},
    option{"verbose", required_argument, nullptr, 'v'},
    option{"pid", required_argument, nullptr, 'p'},
    option{"fid", required_argument, nullptr, 'f'},
    option{"force-rst", no_argument, nullptr, kForceReset},
    option{"retry-interval", required_argument, nullptr, 'r'},
    option{"socket", required_argument, nullptr, kSocket},
    option{"lock-file", required_argument, nullptr, kLockFile},
    option{"version", no_argument, nullptr, 'V'},
    option{"help", no_argument, nullptr, 'h'},
    option{nullptr, 0, nullptr, 0},
};

std::string name_of(int letter) {
  for (const option& one : kOptions) {
    if (one.name != nullptr && one.val == letter) return std::string("--") + one.name;
  }
  return "?";
}

}  // namespace

VmadParsed parse_vmad_options(int argc, char** argv) {
  VmadOptions out;
  for (int letter; (letter = ::getopt_long(argc, argv, "n:v:p:f:r:Vh", kOptions.data(), nullptr)) != -1;) {
    switch (letter) {
      case kConsole: out.console = true; break;
      case kForceReset: out.forced_resets = true; break;
      case 'V': out.version = true; break;
      case 'h': out.help = true; break;
      case '?': return {};
      default:
        if (!take_value(letter, ::optarg, out))
          return {.problem = "wrong value for " + name_of(letter) + ": " + ::optarg};
    }
  }
  if (::optind < argc) return {.problem = std::string("what is ") + argv[::optind] + "?"};
  return {.options = out};
}

void print_vmad_usage(std::FILE* out) {
  std::fprintf(out,
               "usage: vmad [options]\n"
               "Cleans up after processes with libvma that have died.\n"
               "      --console             stay in the foreground, and log to standard error\n"
               "  -n, --notify-dir DIR      the processes' VMA_VMAD_NOTIFY_DIR (default: /tmp/vma)\n"
               "  -v, --verbose N           0 to 8: what is logged (default: 4; 5 is debug)\n"
               "      --force-rst           send resets, instead of leaving them to the kernel\n"
               "  -r, --retry-interval MS   time between attempts to reset a connection (default: 1000)\n"
               "  -p, --pid N, -f, --fid N  accepted, without effect: sizes of tables in VMA\n"
               "      --socket PATH         instead of /var/run/vma_agent.sock\n"
               "      --lock-file PATH      instead of /var/lock/vmad.lock\n"
               "  -V, --version             show the version\n"
               "  -h, --help                show this help\n");
}

}  // namespace ringsock::tools
