// rsrun: runs a program with librspreload.so under it.
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

// As env(1), nohup(1) and others have them: above what programs use.
constexpr int kOwnFailure = 125;
constexpr int kCannotRun = 126;
constexpr int kNotFound = 127;

constexpr char kInstalled[] = RSOCKET_LIBDIR "/librspreload.so";

void print_usage(std::FILE* out) {
  std::fprintf(out,
               "usage: rsrun [options] program [argument ...]\n"
               "Runs the program with its TCP sockets over rsockets (librspreload.so).\n"
               "  -s, --stats               one line of statistics at the end of each process\n"
               "  -l, --log LEVEL           none, error, warn (the default), info or debug\n"
               "  -d, --device WHICH        auto, rdma, soft or none\n"
               "  -t, --polling-time MICROSECONDS\n"
               "                            how long to look for data before going to sleep\n"
               "  -c, --config-dir DIR      configuration files, instead of " SYSCONFDIR
               "/rdma/rsocket\n"
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

/// Puts `entry` in front of a colon-separated list, unless it is in there.
void prepend_to_list(const char* variable, const std::string& entry) {
  const char* before = std::getenv(variable);
  std::string list = before == nullptr ? "" : before;
  if ((":" + list + ":").find(":" + entry + ":") != std::string::npos) return;
  list = list.empty() ? entry : entry + ":" + list;
  ::setenv(variable, list.c_str(), 1);
}

/// The folder above the one that this program is in; empty when that cannot be told.
std::string folder_above_ours() {
  std::array<char, PATH_MAX> path;
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size());
  if (length <= 0) return {};
  const std::string_view self(path.data(), static_cast<std::size_t>(length));
  return std::string(self.substr(0, self.substr(0, self.rfind('/')).rfind('/')));
}

/// The library to preload. Run from a build tree it is the one there, which has to be told where its own libraries are.
std::string preload_library() {
  const std::string top = folder_above_ours();
  std::string built = top + "/.libs/librspreload.so";
  if (top.empty() || !exists(top + "/libringsock-core.la") || !exists(built)) return kInstalled;
  prepend_to_list("LD_LIBRARY_PATH", top + "/.libs");
  return built;
}

struct Job {
  std::string library;
  char** program = nullptr;  ///< argv of the program
};

/// Sets the environment. A message: what is wrong with the option.
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
    default: job.library = value; return std::nullopt;
  }
}

/// Either the job, or the status to end with.
std::optional<Job> parse(int argc, char** argv, int& status) {
  constexpr int kLibrary = 1000;
  constexpr std::array kOptions{
      option{"stats", no_argument, nullptr, 's'},
      option{"log", required_argument, nullptr, 'l'},
      option{"device", required_argument, nullptr, 'd'},
      option{"polling-time", required_argument, nullptr, 't'},
      option{"config-dir", required_argument, nullptr, 'c'},
      option{"library", required_argument, nullptr, kLibrary},
      option{"help", no_argument, nullptr, 'h'},
      option{nullptr, 0, nullptr, 0},
  };
  Job job;
  status = kOwnFailure;
  // "+": what comes after the program's name is the program's.
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

int run(const Job& job) {
  const std::string library = job.library.empty() ? preload_library() : job.library;
  if (library.find_first_of(": ") != std::string::npos)
    return fail(kOwnFailure, library + ": the loader takes no blank or colon in the name of a library to preload");
  if (::access(library.c_str(), R_OK) != 0)
    return fail(kOwnFailure, library + ": " + std::strerror(errno) +
                                 (job.library.empty() ? "; is ringsock's preload library installed?" : ""));
  prepend_to_list("LD_PRELOAD", library);
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
