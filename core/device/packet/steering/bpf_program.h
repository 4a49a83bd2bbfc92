// The BPF programs that are part of this library, and loading them.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/device/packet/steering/libbpf.h"

namespace ringsock::soft {

/// The object file that clang -target bpf makes of packet_steering.bpf.c; embed_bpf writes it down.
extern const std::span<const unsigned char> packet_steering_bpf;
/// The same of xdp_steering.bpf.c.
extern const std::span<const unsigned char> xdp_steering_bpf;

/// An object file that is being prepared for the kernel, or has been loaded. What is not kept by another descriptor
/// goes with it.
class BpfObject {
 public:
  /// Errors: ELIBACC libbpf is missing, and it is said once; ENOMEM, EINVAL.
  static Result<BpfObject> open(std::span<const unsigned char> file, const char* name);

  // Before load(). Names are those of the source.
  void leave_out(const char* program);
  /// The map `name` is one that is there already. Errors: those of bpf(2).
  Status use_map(const char* name, int fd);
  /// Sets the constants of the object.
  template <class Constants>
  void set_constants(const Constants& values) {
    set_constants(&values, sizeof values);
  }
  /// Errors: EPERM, EOPNOTSUPP (a kernel without, or too old), ENOMEM.
  Status load();

  /// A descriptor of its own for a map or program. Errors: ENOENT, EMFILE.
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

/// What a failure of bpf(2) or of tc means to somebody who wants a ring: EPERM, ENODEV, ENOMEM, EMFILE and the like
/// stay, everything else is EOPNOTSUPP.
Error bpf_error(int code, const char* where);

}  // namespace ringsock::soft
