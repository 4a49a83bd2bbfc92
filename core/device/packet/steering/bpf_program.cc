#include "core/device/packet/steering/bpf_program.h"

#include <fcntl.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "core/base/log.h"
#include "core/base/notice.h"
#include "core/base/own_duplicate.h"

namespace ringsock::soft {

constexpr LateLibrary libbpf{"libbpf.so.1"};

namespace {

int tell_debug(libbpf_print_level, const char* format, va_list arguments) {
  if (!log_enabled(LogLevel::debug)) return 0;
  char line[512];
  const int length = std::vsnprintf(line, sizeof line, format, arguments);
  log_debug("libbpf: %s", line);
  return length;
}

/// Redirects libbpf's messages, which go to stderr or to a function of the application, to the debug log.
class QuietLibbpf {
 public:
  QuietLibbpf() : before_(libbpf_set_print(tell_debug)) {}
  ~QuietLibbpf() { libbpf_set_print(before_); }
  QuietLibbpf(const QuietLibbpf&) = delete;
  QuietLibbpf& operator=(const QuietLibbpf&) = delete;

 private:
  libbpf_print_fn_t before_;
};

Result<UniqueFd> own_copy(int fd, const char* where) {
  if (fd < 0) return Error{ENOENT, where};
  UniqueFd copy = own_duplicate(fd);
  if (!copy) return Error::last(where);
  return copy;
}

}  // namespace

Error bpf_error(int code, const char* where) {
  switch (code) {
    case EPERM:
    case ENODEV:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
    case EBUSY: return {code, where};
    case EACCES: return {EPERM, where};
    default: return {EOPNOTSUPP, where};
  }
}

Result<BpfObject> BpfObject::open(std::span<const unsigned char> file, const char* name) {
  if (const std::string missing = libbpf.load_error(); !missing.empty()) {
    if (is_first(Notice::libbpf_is_missing))
      log_warn("no rings of packets, sockets are left to the kernel: %s", missing.c_str());
    return Error{ELIBACC, "libbpf"};
  }
  QuietLibbpf quiet;
  LIBBPF_OPTS(bpf_object_open_opts, options, .object_name = name);
  bpf_object* object = bpf_object__open_mem(file.data(), file.size(), &options);
  if (object == nullptr) return Error::last("bpf_object__open_mem");
  return BpfObject(object);
}

void BpfObject::leave_out(const char* program) {
  if (bpf_program* found = bpf_object__find_program_by_name(object_.get(), program))
    bpf_program__set_autoload(found, false);
}

Status BpfObject::use_map(const char* name, int fd) {
  bpf_map* found = bpf_object__find_map_by_name(object_.get(), name);
  if (found == nullptr) return Error{ENOENT, "bpf map"};
  if (const int failure = bpf_map__reuse_fd(found, fd); failure != 0) return bpf_error(-failure, "bpf map");
  return ok();
}

void BpfObject::set_constants(const void* values, std::size_t bytes) {
  bpf_map* map;
  bpf_object__for_each_map(map, object_.get()) {
    if (std::strstr(bpf_map__name(map), ".rodata") == nullptr) continue;
    bpf_map__set_initial_value(map, values, bytes);
  }
}

Status BpfObject::load() {
  QuietLibbpf quiet;
  if (const int failure = bpf_object__load(object_.get()); failure != 0) return bpf_error(-failure, "bpf_object__load");
  return ok();
}

Result<UniqueFd> BpfObject::map(const char* name) const {
  const bpf_map* found = bpf_object__find_map_by_name(object_.get(), name);
  return own_copy(found != nullptr ? bpf_map__fd(found) : -1, "bpf map");
}

Result<UniqueFd> BpfObject::program(const char* name) const {
  const bpf_program* found = bpf_object__find_program_by_name(object_.get(), name);
  return own_copy(found != nullptr ? bpf_program__fd(found) : -1, "bpf program");
}

}  // namespace ringsock::soft
