#include "libvmacompat/agent/messages.h"

#include <cstring>
#include <type_traits>

namespace ringsock::vma::agent {

namespace {

#pragma pack(push, 1)
struct Head {
  std::uint8_t code;
  std::uint8_t version;
  std::uint8_t status;
  std::uint8_t reserved;
  std::int32_t pid;
};
struct WireInit {
  Head head;
  std::uint32_t library_version;
};
struct WireState {
  Head head;
  std::uint32_t id, source, destination;
  std::uint16_t source_port, destination_port;
  std::uint8_t type, state;
};
struct WireFlow {
  Head head;
  std::uint8_t type, action;
  std::uint32_t interface, tap, destination;
  std::uint16_t destination_port;
  std::uint32_t source;
  std::uint16_t source_port;
};
#pragma pack(pop)
static_assert(sizeof(Head) == 8 && sizeof(WireInit) == 12 && sizeof(WireState) == 26 && sizeof(WireFlow) == 30);

constexpr Error kWrongLength{EPROTO, "agent: wrong length for the message"};

template <class Wire>
bool read(std::span<const std::byte> bytes, Wire& out) {
  static_assert(std::is_trivially_copyable_v<Wire>);
  if (bytes.size() != sizeof out) return false;
  std::memcpy(&out, bytes.data(), sizeof out);
  return true;
}

template <class Wire>
Encoded encoded(const Wire& wire) {
  static_assert(sizeof wire <= sizeof Encoded::bytes);
  Encoded out;
  std::memcpy(out.bytes.data(), &wire, sizeof wire);
  out.size = sizeof wire;
  return out;
}

Head head_of(std::uint8_t code, pid_t pid) {
  return {.code = code, .version = kVersion, .status = 0, .reserved = 0, .pid = pid};
}
Head head_of(Code code, pid_t pid) { return head_of(static_cast<std::uint8_t>(code), pid); }

Encoded encode_body(pid_t pid, const Init& init) {
  return encoded(WireInit{head_of(Code::init, pid), init.library_version});
}
Encoded encode_body(pid_t pid, const State& state) {
  return encoded(WireState{head_of(Code::state, pid), state.id, state.source.s_addr, state.destination.s_addr,
                           state.source_port, state.destination_port, state.type, state.state});
}
Encoded encode_body(pid_t pid, const Exit&) { return encoded(head_of(Code::exit, pid)); }
Encoded encode_body(pid_t pid, const Flow& flow) {
  WireFlow wire{};
  wire.head = head_of(Code::flow, pid);
  wire.head.status = flow.wants_answer ? 1 : 0;
  return encoded(wire);
}

}  // namespace

Result<Message> parse(std::span<const std::byte> bytes) {
  Head head{};
  if (bytes.size() < sizeof head) return Error{EPROTO, "agent: short message"};
  std::memcpy(&head, bytes.data(), sizeof head);
  if (head.pid <= 0) return Error{EPROTO, "agent: no process"};
  Message out{.pid = head.pid, .version = head.version, .body = Exit{}};
  switch (static_cast<Code>(head.code)) {
    case Code::init: {
      WireInit wire{};
      if (!read(bytes, wire)) return kWrongLength;
      out.body = Init{wire.library_version};
      return out;
    }
    case Code::state: {
      WireState wire{};
      if (!read(bytes, wire)) return kWrongLength;
      out.body = State{wire.id,   {wire.source}, {wire.destination}, wire.source_port, wire.destination_port,
                       wire.type, wire.state};
      return out;
    }
    case Code::exit: return bytes.size() == sizeof head ? Result<Message>(out) : kWrongLength;
    case Code::flow: {
      WireFlow wire{};
      if (!read(bytes, wire)) return kWrongLength;
      out.body = Flow{.wants_answer = head.status == 1};
      return out;
    }
  }
  return Error{EPROTO, "agent: unknown message"};
}

Encoded encode(const Message& message) {
  return std::visit([&](const auto& body) { return encode_body(message.pid, body); }, message.body);
}

Encoded accept_init(pid_t pid, std::uint32_t library_version) {
  return encoded(WireInit{head_of(static_cast<std::uint8_t>(Code::init) | kAnswer, pid), library_version});
}

Encoded refuse_flow(pid_t pid) {
  Head head = head_of(static_cast<std::uint8_t>(Code::flow) | kAnswer, pid);
  head.status = 1;
  return encoded(head);
}

Status parse_init_answer(std::span<const std::byte> bytes, pid_t pid) {
  WireInit wire{};
  if (!read(bytes, wire)) return kWrongLength;
  if (wire.head.code != (static_cast<std::uint8_t>(Code::init) | kAnswer) || wire.head.pid != pid)
    return Error{EPROTO, "agent: no answer for this process"};
  if (wire.head.version < kVersion) return Error{EPROTONOSUPPORT, "agent: an older service"};
  return ok();
}

}  // namespace ringsock::vma::agent
