// vmad: cleans up after processes with libvma that have died.
#include <fcntl.h>
#include <syslog.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "config.h"
#include "tools/vmad_loop.h"
#include "tools/vmad_options.h"

namespace ringsock::tools {
namespace {

int refuse(const std::string& message) {
  std::fprintf(stderr, "vmad: %s\n", message.c_str());
  ::syslog(LOG_ERR, "%s", message.c_str());
  return EXIT_FAILURE;
}

std::string text_of(const std::string& what, const Error& error) {
  return what + ": " + error.where + ": " + std::strerror(error.code);
}

/// Takes the lock that one service has. The file stays open, with our number in it.
Result<UniqueFd> take_lock(const std::string& path) {
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644));
  if (!file) return Error::last("open");
  if (::lockf(file.get(), F_TLOCK, 0) != 0) return Error::last("another vmad runs");
  const std::string number = std::to_string(::getpid()) + "\n";
  if (::ftruncate(file.get(), 0) != 0 || ::write(file.get(), number.data(), number.size()) < 0)
    return Error::last("write");
  return file;
}

/// The loop reads the signals that end it.
void block_ending_signals() {
  sigset_t ending;
  ::sigemptyset(&ending);
  ::sigaddset(&ending, SIGTERM);
  ::sigaddset(&ending, SIGINT);
  ::sigprocmask(SIG_BLOCK, &ending, nullptr);
}

int serve(const VmadOptions& options) {
  ::openlog("vmad", LOG_PID, LOG_LOCAL5);
  if (!options.console && ::daemon(0, 0) != 0) return refuse(std::string("daemon: ") + std::strerror(errno));
  block_ending_signals();
  const auto lock = take_lock(options.lock_file);
  if (!lock) return refuse(text_of(options.lock_file, lock.error()));
  auto loop = VmadLoop::open(options);
  if (!loop) return refuse(text_of(options.socket + ", " + options.notify_directory, loop.error()));
  (*loop)->log(LOG_INFO, "serves " + options.socket);
  const Status ended = (*loop)->run();
  return ended ? EXIT_SUCCESS : refuse(text_of("vmad", ended.error()));
}

}  // namespace
}  // namespace ringsock::tools

int main(int argc, char** argv) {
  using namespace ringsock::tools;
  const auto parsed = parse_vmad_options(argc, argv);
  if (!parsed.options) {
    if (!parsed.problem.empty()) std::fprintf(stderr, "vmad: %s\n", parsed.problem.c_str());
    print_vmad_usage(stderr);
    return EXIT_FAILURE;
  }
  if (parsed.options->help) {
    print_vmad_usage(stdout);
    return EXIT_SUCCESS;
  }
  if (parsed.options->version) {
    std::printf("vmad 9.8.84 (" PACKAGE_STRING ")\n");
    return EXIT_SUCCESS;
  }
  return serve(*parsed.options);
}
