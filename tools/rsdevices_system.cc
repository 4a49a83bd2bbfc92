#include "tools/rsdevices_system.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/base/unique_fd.h"

namespace ringsock::tools {

namespace {

namespace fs = std::filesystem;

int resource_of(Limit which) {
  switch (which) {
    case Limit::locked_memory: return RLIMIT_MEMLOCK;
    case Limit::file_size: return RLIMIT_FSIZE;
    case Limit::descriptors: break;
  }
  return RLIMIT_NOFILE;
}

class RealSystem final : public System {
 public:
  [[nodiscard]] std::optional<std::string> read(const std::string& path) const override {
    std::ifstream file(path);
    std::ostringstream text;
    // A file of sysfs may be opened but fail to be read.
    if (!file || !(text << file.rdbuf())) return std::nullopt;
    std::string out = text.str();
    if (!out.empty() && out.back() == '\n') out.pop_back();
    return out;
  }

  [[nodiscard]] std::vector<std::string> list(const std::string& directory) const override {
    std::vector<std::string> names;
    std::error_code error;
    for (fs::directory_iterator entry(directory, error); !error && entry != fs::directory_iterator();
         entry.increment(error)) {
      names.push_back(entry->path().filename());
    }
    std::ranges::sort(names);
    return names;
  }

  [[nodiscard]] std::string link_name(const std::string& path) const override {
    std::error_code error;
    return fs::read_symlink(path, error).filename();
  }

  [[nodiscard]] int access_error(const std::string& path) const override {
    if (::access(path.c_str(), R_OK | W_OK) != 0) return errno;
    std::error_code unknown;
    if (!fs::is_character_file(path, unknown)) return 0;
    // Opened, because a container's control group may refuse what the file's mode permits.
    const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    return fd ? 0 : errno;
  }

  [[nodiscard]] std::vector<VerbsDevice> verbs_devices(std::size_t trial_bytes) const override {
    return ask_libibverbs(trial_bytes);
  }
  [[nodiscard]] std::vector<HostAddress> addresses(bool ask_rdma_cm) const override {
    return ask_addresses(ask_rdma_cm);
  }
  [[nodiscard]] int feature_error(KernelFeature feature) const override { return ask_kernel(feature); }

  [[nodiscard]] std::optional<std::uint64_t> limit(Limit which) const override {
    rlimit limit{};
    if (::getrlimit(resource_of(which), &limit) != 0) return std::nullopt;
    if (limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
    return limit.rlim_cur;
  }

  [[nodiscard]] std::string user() const override {
    const passwd* entry = ::getpwuid(::geteuid());
    return entry != nullptr ? entry->pw_name : "with the number " + std::to_string(::geteuid());
  }

  [[nodiscard]] std::string kernel_release() const override {
    utsname name{};
    return ::uname(&name) == 0 ? name.release : "";
  }
};

}  // namespace

std::unique_ptr<System> real_system() { return std::make_unique<RealSystem>(); }

}  // namespace ringsock::tools
