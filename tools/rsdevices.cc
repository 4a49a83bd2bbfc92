// rsdevices: shows what ringsock can use on this host, and why it cannot use the rest.
#include <getopt.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "core/config/config_directory.h"
#include "tools/rsdevices_survey.h"

namespace ringsock::tools {
namespace {

// The answer "no" is not a failure, as for grep(1) and diff(1).
constexpr int kNothingUsable = 1;
constexpr int kFailure = 2;

struct Options {
  bool json = false;
  bool rdma = true;
  bool soft = true;
};

void print_usage(std::FILE* out) {
  std::fprintf(out,
               "usage: rsdevices [options]\n"
               "Lists the devices that ringsock can use here, and the reasons why it cannot use others.\n"
               "  -d, --device KIND     list only real devices (rdma), or only the embedded one (soft)\n"
               "  -j, --json            print JSON\n"
               "  -h, --help            show this help\n"
               "Exit status: 0 a device can be used, 1 none can, 2 wrong usage or failure.\n");
}

bool apply(int letter, Options& options) {
  if (letter == 'j') {
    options.json = true;
    return true;
  }
  if (letter != 'd') return false;
  const std::string_view kind = ::optarg;
  options.rdma = kind == "rdma";
  options.soft = kind == "soft";
  if (options.rdma || options.soft) return true;
  std::fprintf(stderr, "rsdevices: --device takes rdma or soft\n");
  return false;
}

/// Returns the options, or sets the exit status.
std::optional<Options> parse(int argc, char** argv, int& status) {
  constexpr std::array kOptions{
      option{"device", required_argument, nullptr, 'd'},
      option{"json", no_argument, nullptr, 'j'},
      option{"help", no_argument, nullptr, 'h'},
      option{nullptr, 0, nullptr, 0},
  };
  Options options;
  status = kFailure;
  for (int letter; (letter = ::getopt_long(argc, argv, "d:jh", kOptions.data(), nullptr)) != -1;) {
    if (letter == 'h') {
      print_usage(stdout);
      status = EXIT_SUCCESS;
      return std::nullopt;
    }
    if (!apply(letter, options)) {
      print_usage(stderr);
      return std::nullopt;
    }
  }
  if (::optind < argc) {
    std::fprintf(stderr, "rsdevices: what is %s?\n", argv[::optind]);
    print_usage(stderr);
    return std::nullopt;
  }
  return options;
}

/// Returns the settings that the libraries would use.
Settings settings(const Options& options) {
  const char* const directory = config::config_directory();
  const config::RsocketOverrides overrides = config::environment_overrides();
  const auto report = [](const std::string& line) { std::fprintf(stderr, "rsdevices: %s\n", line.c_str()); };
  return {.config = config::load_rsocket_config(directory, overrides, report),
          .device_source = overrides.device != nullptr ? overrides.device_name : std::string(directory) + "/device",
          .rdma = options.rdma,
          .soft = options.soft};
}

int run(const Options& options) {
  const Survey all = survey(*real_system(), settings(options));
  const std::string text = options.json ? survey_json(all) : survey_text(all);
  if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0) {
    std::fprintf(stderr, "rsdevices: standard output: %s\n", std::strerror(errno));
    return kFailure;
  }
  return all.is_any_usable() ? EXIT_SUCCESS : kNothingUsable;
}

}  // namespace
}  // namespace ringsock::tools

int main(int argc, char** argv) {
  int status = 0;
  const auto options = ringsock::tools::parse(argc, argv, status);
  return options ? ringsock::tools::run(*options) : status;
}
