// What the kernel says of a thread.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

namespace ringsock::support {

/// What /proc/THREAD/status says behind `name`.
inline std::string status_of(pid_t thread, const std::string& name) {
  std::ifstream file("/proc/" + std::to_string(thread) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name + ":\t")) return line.substr(name.size() + 2);
  }
  return {};
}

/// Waits until the thread sleeps and is not woken between several looks at it. Returns false once it has ended, and
/// tells on standard error how that was seen.
inline bool falls_asleep(pid_t thread) {
  constexpr int kLooks = 20;
  constexpr useconds_t kBetweenLooks = 1000;
  std::string wake_ups;
  for (int looks = 0; looks < kLooks; ++looks) {
    errno = 0;
    const std::string state = status_of(thread, "State");
    if (state.empty() || state.starts_with('Z')) {
      std::fprintf(stderr, "thread %d: state '%s' (%s)\n", thread, state.c_str(), std::strerror(errno));
      return false;
    }
    const std::string now = status_of(thread, "voluntary_ctxt_switches");
    if (!state.starts_with('S') || now != wake_ups) looks = 0;
    wake_ups = now;
    ::usleep(kBetweenLooks);
  }
  return true;
}

/// Waits until the other threads of this process sleep, for a second at most.
inline void wait_until_others_sleep() {
  constexpr int kLooks = 1000;
  // A process that has used all of its descriptors needs two more for the look.
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit more{std::min(limit.rlim_cur + 2, limit.rlim_max), limit.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &more);
  for (int looks = 0; looks < kLooks; ++looks) {
    bool all_sleep = true;
    for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
      const pid_t number = std::stoi(thread.path().filename());
      all_sleep = all_sleep && (number == ::gettid() || status_of(number, "State").starts_with('S'));
    }
    if (all_sleep) break;
    ::usleep(1000);
  }
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace ringsock::support
