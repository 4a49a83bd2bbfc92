#include "core/device/packet/steering/copy_filter.h"

#include <linux/bpf.h>
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <vector>

#include "core/base/unique_fd.h"
#include "core/device/packet/steering/bpf_program.h"
#include "core/device/packet/steering/flow_key.h"
#include "core/device/packet/steering/libbpf.h"
#include "core/wire/ip.h"

namespace ringsock::soft {

namespace {

constexpr std::size_t kMostFlows = 256;
constexpr std::uint8_t kPacket = 6;  // LD_ABS expects the context in this register
constexpr std::uint8_t kIfindex = 7, kProtocol = 8, kScratch = 0;

/// Instructions of the kernel's virtual machine: linux/bpf.h, and bpf/instruction-set in the kernel's documentation.
class Assembler {
 public:
  void copy(std::uint8_t to, std::uint8_t from) { add(BPF_ALU64 | BPF_MOV | BPF_X, to, from, 0, 0); }
  void set(std::uint8_t to, std::int32_t value) { add(BPF_ALU64 | BPF_MOV | BPF_K, to, 0, 0, value); }
  void load_field(std::uint8_t to, std::size_t offset) {
    add(BPF_LDX | BPF_MEM | BPF_W, to, kPacket, static_cast<std::int16_t>(offset), 0);
  }
  /// Loads a word of the IP header, in host order.
  void load_header(std::size_t offset) {
    // NOLINTNEXTLINE(misc-redundant-expression): two fields of the opcode are 0
    add(BPF_LD | BPF_ABS | BPF_W, 0, 0, 0, SKF_NET_OFF + static_cast<std::int32_t>(offset));
  }
  void jump_if(std::uint8_t comparison, std::uint8_t left, std::uint32_t right, std::size_t skipped) {
    add(static_cast<std::uint8_t>(BPF_JMP32 | BPF_K | comparison), left, 0, static_cast<std::int16_t>(skipped),
        static_cast<std::int32_t>(right));
  }
  void give_back(std::int32_t value) {
    set(kScratch, value);
    add(BPF_JMP | BPF_EXIT, 0, 0, 0, 0);
  }
  [[nodiscard]] const std::vector<bpf_insn>& code() const { return code_; }

 private:
  void add(std::uint8_t code, std::uint8_t to, std::uint8_t from, std::int16_t offset, std::int32_t value) {
    bpf_insn instruction{};
    instruction.code = code;
    instruction.dst_reg = to & 0xf;
    instruction.src_reg = from & 0xf;
    instruction.off = offset;
    instruction.imm = value;
    code_.push_back(instruction);
  }
  std::vector<bpf_insn> code_;
};

constexpr std::int32_t kRefuse = 0;
constexpr std::int32_t kAccept = -1;
constexpr std::size_t kGiveBack = 2;  // number of instructions

void refuse(Assembler& out, const CopiedFlow& flow) {
  const auto bytes = flow.address.bytes();
  const bool is_v4 = flow.address.is_v4();
  const std::size_t at = is_v4 ? offsetof(wire::Ipv4Header, destination) : offsetof(wire::Ipv6Header, destination);
  std::size_t left = bytes.size() / 4 * 2 + kGiveBack + 1;
  out.jump_if(BPF_JNE, kIfindex, static_cast<std::uint32_t>(flow.ifindex), left);
  out.jump_if(BPF_JNE, kProtocol, htons(is_v4 ? ETH_P_IP : ETH_P_IPV6), --left);
  for (std::size_t i = 0; i < bytes.size(); i += 4) {
    std::uint32_t word;
    std::memcpy(&word, bytes.data() + i, sizeof word);
    out.load_header(at + i);
    out.jump_if(BPF_JNE, kScratch, ntohl(word), left -= 2);
  }
  out.give_back(kRefuse);
}

Assembler program_for(std::span<const CopiedFlow> flows) {
  Assembler out;
  out.copy(kPacket, 1);
  out.load_field(kScratch, offsetof(__sk_buff, tc_index));
  out.jump_if(BPF_JEQ, kScratch, RINGSOCK_COPY_MARK, kGiveBack);
  out.give_back(kAccept);
  // Packets that this host sends to itself pass tc as well, where they may get a mark meant for another packet.
  out.load_field(kScratch, offsetof(__sk_buff, pkt_type));
  out.jump_if(BPF_JNE, kScratch, PACKET_LOOPBACK, kGiveBack);
  out.give_back(kAccept);
  out.load_field(kIfindex, offsetof(__sk_buff, ifindex));
  out.load_field(kProtocol, offsetof(__sk_buff, protocol));
  for (const CopiedFlow& flow : flows) refuse(out, flow);
  out.give_back(kAccept);
  return out;
}

}  // namespace

Status refuse_copies(int fd, std::span<const CopiedFlow> flows) {
  if (flows.size() > kMostFlows) return Error{E2BIG, "copy filter"};
  const Assembler program = program_for(flows);
  const UniqueFd loaded(bpf_prog_load(BPF_PROG_TYPE_SOCKET_FILTER, "refuse_copies", "GPL", program.code().data(),
                                      program.code().size(), nullptr));
  if (!loaded) return bpf_error(errno, "copy filter");
  const int number = loaded.get();
  if (::setsockopt(fd, SOL_SOCKET, SO_ATTACH_BPF, &number, sizeof number) != 0) return Error::last("SO_ATTACH_BPF");
  return ok();
}

Status accept_copies(int fd) {
  const int none = 0;
  if (::setsockopt(fd, SOL_SOCKET, SO_DETACH_BPF, &none, sizeof none) == 0 || errno == ENOENT) return ok();
  return Error::last("SO_DETACH_BPF");
}

}  // namespace ringsock::soft
