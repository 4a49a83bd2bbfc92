// Attaches keep_from_kernel() to the tc ingress of an interface.
#pragma once

#include <memory>

#include "core/base/result.h"
#include "core/base/unique_fd.h"

namespace ringsock::soft {

/// The program is attached while this object lives, and never longer than the process, however that ends.
class IngressHook {
 public:
  virtual ~IngressHook() = default;
  /// Called in a forked child; has no effect on the parent's program.
  virtual void forget() = 0;
};

/// Attaches by a BPF link. Errors: EPERM, ENODEV, EOPNOTSUPP (before Linux 6.6).
Result<std::unique_ptr<IngressHook>> attach_tcx(unsigned ifindex, int program);

/// Attaches as a filter of a clsact qdisc, which is made if there is none. Neither ends with the process, so another
/// process, `guardian` (flow_guardian.cc), attaches the filter, and removes it once this process has ended. Errors:
/// EPERM, ENODEV, EOPNOTSUPP (no kernel support, no guardian), EMFILE.
Result<std::unique_ptr<IngressHook>> attach_clsact(unsigned ifindex, int program, const char* guardian);

}  // namespace ringsock::soft
