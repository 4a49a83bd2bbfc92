#include "core/base/filter_program.h"

#include <linux/audit.h>
#include <linux/seccomp.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>

namespace ringsock {

namespace {

#if defined(__x86_64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#elif defined(__riscv)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_RISCV64;
#elif defined(__powerpc64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_PPC64LE;
#elif defined(__s390x__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_S390X;
#else
constexpr std::uint32_t kArchitecture = 0;
#endif

struct Machine {
  std::uint32_t a = 0;
  std::uint32_t x = 0;
  std::array<std::uint32_t, BPF_MEMWORDS> memory{};
};

seccomp_data data_of(const RareCallRow& call) {
  seccomp_data data{};
  data.nr = static_cast<int>(call.number);
  data.arch = kArchitecture;
  for (std::size_t i = 0; i < call.arguments.size(); ++i) data.args[i] = static_cast<std::uint64_t>(call.arguments[i]);
  return data;
}

/// Returns nothing when the step does not load one of the words that the kernel permits.
std::optional<std::uint32_t> load(const sock_filter& step, const Machine& machine, const seccomp_data& data) {
  switch (BPF_MODE(step.code)) {
    case BPF_IMM: return step.k;
    case BPF_LEN: return sizeof data;
    case BPF_MEM:
      if (step.k >= BPF_MEMWORDS) return std::nullopt;
      return machine.memory[step.k];
    case BPF_ABS: {
      if (step.k % 4 != 0 || step.k > sizeof data - 4) return std::nullopt;
      std::uint32_t word = 0;
      std::memcpy(&word, reinterpret_cast<const std::byte*>(&data) + step.k, sizeof word);
      return word;
    }
    default: return std::nullopt;
  }
}

std::optional<std::uint32_t> compute(const sock_filter& step, const Machine& machine) {
  const std::uint32_t by = BPF_SRC(step.code) == BPF_X ? machine.x : step.k;
  switch (BPF_OP(step.code)) {
    case BPF_ADD: return machine.a + by;
    case BPF_SUB: return machine.a - by;
    case BPF_MUL: return machine.a * by;
    case BPF_DIV:
      if (by == 0) return std::nullopt;
      return machine.a / by;
    case BPF_AND: return machine.a & by;
    case BPF_OR: return machine.a | by;
    case BPF_XOR: return machine.a ^ by;
    case BPF_LSH: return by < 32 ? machine.a << by : 0;
    case BPF_RSH: return by < 32 ? machine.a >> by : 0;
    case BPF_NEG: return 0 - machine.a;
    default: return std::nullopt;
  }
}

std::size_t jump(const sock_filter& step, const Machine& machine) {
  const std::uint32_t with = BPF_SRC(step.code) == BPF_X ? machine.x : step.k;
  bool holds = false;
  switch (BPF_OP(step.code)) {
    case BPF_JA: return step.k;
    case BPF_JEQ: holds = machine.a == with; break;
    case BPF_JGT: holds = machine.a > with; break;
    case BPF_JGE: holds = machine.a >= with; break;
    case BPF_JSET: holds = (machine.a & with) != 0; break;
    default: break;
  }
  return holds ? step.jt : step.jf;
}

}  // namespace

std::uint32_t run_filter(std::span<const sock_filter> program, const RareCallRow& call) {
  const seccomp_data data = data_of(call);
  Machine machine;
  // Jumps only lead forward, so the loop ends.
  for (std::size_t at = 0; at < program.size(); ++at) {
    const sock_filter& step = program[at];
    switch (BPF_CLASS(step.code)) {
      case BPF_LD:
      case BPF_LDX: {
        const auto value = load(step, machine, data);
        if (!value) return SECCOMP_RET_KILL_PROCESS;
        (BPF_CLASS(step.code) == BPF_LD ? machine.a : machine.x) = *value;
        break;
      }
      case BPF_ST:
      case BPF_STX:
        if (step.k >= BPF_MEMWORDS) return SECCOMP_RET_KILL_PROCESS;
        machine.memory[step.k] = BPF_CLASS(step.code) == BPF_ST ? machine.a : machine.x;
        break;
      case BPF_ALU: {
        const auto value = compute(step, machine);
        if (!value) return SECCOMP_RET_KILL_PROCESS;
        machine.a = *value;
        break;
      }
      case BPF_JMP: at += jump(step, machine); break;
      case BPF_MISC:
        if (BPF_MISCOP(step.code) == BPF_TAX) {
          machine.x = machine.a;
        } else {
          machine.a = machine.x;
        }
        break;
      case BPF_RET: return BPF_RVAL(step.code) == BPF_A ? machine.a : step.k;
      default: return SECCOMP_RET_KILL_PROCESS;
    }
  }
  return SECCOMP_RET_KILL_PROCESS;
}

Verdict verdict_of(std::span<const sock_filter> program, const RareCallRow& call) {
  const std::uint32_t answer = run_filter(program, call);
  switch (answer & SECCOMP_RET_ACTION_FULL) {
    case SECCOMP_RET_ALLOW:
    case SECCOMP_RET_LOG: return Verdict::allowed;
    // glibc then uses clone(2).
    case SECCOMP_RET_ERRNO: return Verdict::refused;
    default: return Verdict::killed;  // a tracer or a supervisor may not answer
  }
}

}  // namespace ringsock
