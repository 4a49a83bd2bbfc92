// The BPF programs of this library, and their loader.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/device/packet/steering/libbpf.h"

namespace ringsock::soft {

/// The object file that clang -target bpf makes from packet_steering.bpf.c, converted to C++ by embed_bpf.
extern const std::span<const unsigned char> packet_steering_bpf;
/// The same for xdp_steering.bpf.c.
extern const std::span<const unsigned char> xdp_steering_bpf;

/// An object file that is prepared for the kernel, or has been loaded. Its maps and programs end with it unless other
/// descriptors keep them.
class BpfObject {
 public:
  /// Errors: ELIBACC libbpf is missing, which is logged once; ENOMEM, EINVAL.
  static Result<BpfObject> open(std::span<const unsigned char> file, const char* name);

  // Called before load(). Names are those in the source.
  void leave_out(const char* program);
  /// Uses an existing map as the map `name`. Errors: those of bpf(2).
  Status use_map(const char* name, int fd);
  /// Sets the constants of the object.
  template <class Constants>
  void set_constants(const Constants& values) {
    set_constants(&values, sizeof values);
  }
  /// Errors: EPERM, EOPNOTSUPP (the kernel has no BPF, or is too old), ENOMEM.
  Status load();

  /// Returns a descriptor of its own for a map or program. Errors: ENOENT, EMFILE.
  Result<UniqueFd> map(const char* name) const;
  Result<UniqueFd> program(const char* name) const;

 private:
  struct Close {
    void operator()(bpf_object* object) const { bpf_object__close(object); }
  };
  void set_constants(const void* values, std::size_t bytes);
  explicit BpfObject(bpf_object* object) : object_(object) {}
  std::unique_ptr<bpf_object, Close> object_;
};

/// Translates an error of bpf(2) or tc into one for users of rings: EPERM, ENODEV, ENOMEM, EMFILE and the like are
/// kept, all others become EOPNOTSUPP.
Error bpf_error(int code, const char* where);

}  // namespace ringsock::soft
