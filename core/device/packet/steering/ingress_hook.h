// keep_from_kernel() at the tc ingress of an interface.
#pragma once

#include <memory>

#include "core/base/result.h"
#include "core/base/unique_fd.h"

namespace ringsock::soft {

/// The program is attached while this lives, and not longer than the process, however that ends.
class IngressHook {
 public:
  virtual ~IngressHook() = default;
  /// In a forked child: without an effect on the parent's.
  virtual void forget() = 0;
};

/// A BPF link. Errors: EPERM, ENODEV, EOPNOTSUPP (before Linux 6.6).
Result<std::unique_ptr<IngressHook>> attach_tcx(unsigned ifindex, int program);

/// A filter of a clsact qdisc, which is made if there is none. Nothing of that goes with a process, so another one,
/// `guardian` (flow_guardian.cc), attaches it, and removes it as soon as this one is gone.
/// Errors: EPERM, ENODEV, EOPNOTSUPP (kernel without, no guardian), EMFILE.
Result<std::unique_ptr<IngressHook>> attach_clsact(unsigned ifindex, int program, const char* guardian);

}  // namespace ringsock::soft
