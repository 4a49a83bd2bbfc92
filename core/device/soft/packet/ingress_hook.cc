#include "core/device/soft/packet/ingress_hook.h"

#include <bpf/bpf.h>

#include <cerrno>

#include "core/device/soft/packet/bpf_program.h"

namespace ringsock::soft {

namespace {

/// BPF_TCX_INGRESS, which headers before Linux 6.6 do not have.
constexpr auto kTcxIngress = static_cast<bpf_attach_type>(46);

class TcxLink final : public IngressHook {
 public:
  explicit TcxLink(UniqueFd link) : link_(std::move(link)) {}
  void forget() override { link_.reset(); }

 private:
  UniqueFd link_;
};

}  // namespace

Result<std::unique_ptr<IngressHook>> attach_tcx(unsigned ifindex, int program) {
  UniqueFd link(bpf_link_create(program, static_cast<int>(ifindex), kTcxIngress, nullptr));
  if (!link) return bpf_error(errno, "tcx link");
  return std::unique_ptr<IngressHook>(new TcxLink(out_of_the_way(std::move(link))));
}

}  // namespace ringsock::soft
