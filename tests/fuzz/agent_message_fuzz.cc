// What any process of the host may send to vmad, and what any host may send to it while it resets connections.
#include <cstdlib>

#include "libvmacompat/agent/messages.h"
#include "tools/tcp_reset.h"
#include "tools/vmad_service.h"

using namespace ringsock;
using namespace ringsock::tools;

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

/// Allows everything, so that nothing but the service itself bounds what is done.
class PatientSystem final : public VmadSystem {
 public:
  void answer(pid_t pid, std::span<const std::byte> bytes) override { require(pid == kPid && bytes.size() <= 12); }
  bool watch(pid_t pid) override { return pid == kPid; }
  void unwatch(pid_t pid) override { require(pid == kPid); }
  bool has_raw_sockets(pid_t) override { return true; }
  void reset(const TcpPair&) override { ++resets; }
  void remove_files(pid_t pid) override { require(pid == kPid); }
  void log(int, const std::string& line) override { require(line.find('\n') == std::string::npos); }

  static constexpr pid_t kPid = 7;
  std::size_t resets = 0;
};

/// The datagrams of the input: each begins with its length, 0 to 63 bytes.
template <class Visit>
void for_each_datagram(std::span<const std::byte> input, Visit visit) {
  while (!input.empty()) {
    const auto wanted = std::to_integer<std::size_t>(input[0]) % 64;
    input = input.subspan(1);
    const auto datagram = input.first(std::min(wanted, input.size()));
    visit(datagram);
    input = input.subspan(datagram.size());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto input = std::as_bytes(std::span(data, size));
  PatientSystem system;
  VmadService service(system);
  std::size_t datagrams = 0, packets = 0;
  TcpResets resets({.interval = Nanos(1), .forced = true}, [&](const TcpPacket&, std::uint32_t) { ++packets; });
  for_each_datagram(input, [&](std::span<const std::byte> datagram) {
    ++datagrams;
    const auto message = vma::agent::parse(datagram);
    if (message && !std::holds_alternative<vma::agent::Flow>(message->body))
      require(vma::agent::encode(*message).size == datagram.size());
    service.received(PatientSystem::kPid, datagram);
    static_cast<void>(vma::agent::parse_init_answer(datagram, PatientSystem::kPid));
    if (const auto answer = parse_answer(datagram)) resets.begin(answer->pair, Nanos(0));
    resets.received(datagram);
  });
  require(service.processes() <= 1 && service.connections() <= datagrams && resets.count() <= datagrams);
  service.has_ended(PatientSystem::kPid);
  require(service.processes() == 0 && service.connections() == 0 && system.resets <= datagrams);
  require(packets <= datagrams);
  return 0;
}
