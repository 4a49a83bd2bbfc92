// rsrun: runs a program with librspreload.so preloaded.
#include <getopt.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "tools/text.h"

namespace ringsock::tools {
namespace {

// The exit status of rsrun's own failures, as for env(1) and nohup(1).
constexpr int kOwnFailure = 125;
constexpr int kCannotRun = 126;
constexpr int kNotFound = 127;

constexpr char kInstalled[] = RSOCKET_LIBDIR "/librspreload.so";
constexpr char kInstalledVma[] = VMA_LIBDIR "/libvma.so.9";

void print_usage(std::FILE* out) {
  std::fprintf(out,
               "usage: rsrun [options] program [argument ...]\n"
               "Runs the program with its TCP sockets over rsockets (librspreload.so).\n"
               "  -s, --stats               print a line of statistics at the end of each process\n"
               "  -l, --log LEVEL           none, error, warn (the default), info or debug\n"
               "  -d, --device WHICH        auto, rdma, soft or none\n"
               "  -t, --polling-time MICROSECONDS\n"
               "                            how long to poll for data before sleeping\n"
               "  -c, --config-dir DIR      directory of configuration files, instead of " SYSCONFDIR
               "/rdma/rsocket\n"
               "      --vma                     also run UDP sockets over Ethernet rings (libvma.so)\n"
               "      --library FILE        preload this library instead of the installed one\n"
               "  -h, --help                show this help\n");
}

int fail(int status, const std::string& message) {
  std::fprintf(stderr, "rsrun: %s\n", message.c_str());
  return status;
}

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

/// Adds `entry` in front of a colon-separated list, unless the list contains it.
void prepend_to_list(const char* variable, const std::string& entry) {
  const char* before = std::getenv(variable);
  std::string list = before == nullptr ? "" : before;
  if ((":" + list + ":").find(":" + entry + ":") != std::string::npos) return;
  list = list.empty() ? entry : entry + ":" + list;
  ::setenv(variable, list.c_str(), 1);
}

/// Returns the parent of the directory of this program, empty when unknown.
std::string folder_above_ours() {
  std::array<char, PATH_MAX> path;
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size());
  if (length <= 0) return {};
  const std::string_view self(path.data(), static_cast<std::size_t>(length));
  return std::string(self.substr(0, self.substr(0, self.rfind('/')).rfind('/')));
}

/// Returns a library to preload. In a build tree it is the one built there, for which the path of its libraries is set.
std::string preload_library(const std::string& name, const char* installed) {
  const std::string top = folder_above_ours();
  std::string built = top + "/.libs/" + name;
  if (top.empty() || !exists(top + "/libringsock-core.la") || !exists(built)) return installed;
  prepend_to_list("LD_LIBRARY_PATH", top + "/.libs");
  return built;
}

struct Job {
  std::string library;
  bool with_vma = false;
  char** program = nullptr;  ///< argv of the program
};

constexpr int kLibrary = 1000, kVma = 1001;

/// Sets the environment for an option. Returns a message when the option is wrong.
std::optional<std::string> apply(int letter, const char* value, Job& job) {
  switch (letter) {
    case 's': ::setenv("RINGSOCK_STATS", "1", 1); return std::nullopt;
    case 'l':
      if (!is_one_of(value, {"none", "error", "warn", "info", "debug"}))
        return "--log takes none, error, warn, info or debug";
      ::setenv("RINGSOCK_LOG", value, 1);
      return std::nullopt;
    case 'd':
      if (!is_one_of(value, {"auto", "rdma", "soft", "none"})) return "--device takes auto, rdma, soft or none";
      ::setenv("RINGSOCK_DEVICE", value, 1);
      return std::nullopt;
    case 't':
      if (!parse_number(value, 0, 4294967295)) return "--polling-time takes 0 to 4294967295 microseconds";
      ::setenv("RINGSOCK_POLLING_TIME", value, 1);
      return std::nullopt;
    case 'c': {
      struct stat status {};
      if (::stat(value, &status) != 0) return std::string(value) + ": " + std::strerror(errno);
      if (!S_ISDIR(status.st_mode)) return std::string(value) + ": not a directory";
      ::setenv("RINGSOCK_CONFIG_DIR", value, 1);
      return std::nullopt;
    }
    case kVma: job.with_vma = true; return std::nullopt;
    default: job.library = value; return std::nullopt;
  }
}

/// Returns the job, or sets the exit status.
std::optional<Job> parse(int argc, char** argv, int& status) {
  constexpr std::array kOptions{
      option{"stats", no_argument, nullptr, 's'},
      option{"log", required_argument, nullptr, 'l'},
      option{"device", required_argument, nullptr, 'd'},
      option{"polling-time", required_argument, nullptr, 't'},
      option{"config-dir", required_argument, nullptr, 'c'},
      option{"library", required_argument, nullptr, kLibrary},
      option{"vma", no_argument, nullptr, kVma},
      option{"help", no_argument, nullptr, 'h'},
      option{nullptr, 0, nullptr, 0},
  };
  Job job;
  status = kOwnFailure;
  // "+": arguments after the program's name belong to the program.
  for (int letter; (letter = ::getopt_long(argc, argv, "+sl:d:t:c:h", kOptions.data(), nullptr)) != -1;) {
    if (letter == 'h') {
      print_usage(stdout);
      status = EXIT_SUCCESS;
      return std::nullopt;
    }
    if (letter == '?') {
      print_usage(stderr);
      return std::nullopt;
    }
    if (const auto wrong = apply(letter, ::optarg, job)) {
      fail(kOwnFailure, *wrong);
      return std::nullopt;
    }
  }
  if (::optind >= argc) {
    fail(kOwnFailure, "which program?");
    print_usage(stderr);
    return std::nullopt;
  }
  job.program = argv + ::optind;
  return job;
}

/// Puts `library` into LD_PRELOAD. Returns a message when that is not possible.
std::optional<std::string> preload(const std::string& library, bool is_asked_for) {
  if (library.find_first_of(": ") != std::string::npos)
    return library + ": the loader takes no blank or colon in the name of a library to preload";
  if (::access(library.c_str(), R_OK) != 0)
    return library + ": " + std::strerror(errno) + (is_asked_for ? "" : "; is ringsock's preload library installed?");
  prepend_to_list("LD_PRELOAD", library);
  return std::nullopt;
}

int run(const Job& job) {
  if (job.with_vma) {
    if (const auto wrong = preload(preload_library("libvma.so", kInstalledVma), false))
      return fail(kOwnFailure, *wrong);
  }
  const bool is_asked_for = !job.library.empty();
  const std::string library = is_asked_for ? job.library : preload_library("librspreload.so", kInstalled);
  if (const auto wrong = preload(library, is_asked_for)) return fail(kOwnFailure, *wrong);
  ::execvp(job.program[0], job.program);
  const int error = errno;
  return fail(error == ENOENT ? kNotFound : kCannotRun, std::string(job.program[0]) + ": " + std::strerror(error));
}

}  // namespace
}  // namespace ringsock::tools

int main(int argc, char** argv) {
  int status = 0;
  const auto job = ringsock::tools::parse(argc, argv, status);
  return job ? ringsock::tools::run(*job) : status;
}
