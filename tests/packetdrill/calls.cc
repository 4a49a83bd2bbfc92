#include "tests/packetdrill/calls.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/tcp.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tests/packetdrill/control_data.h"

namespace ringsock::packetdrill {
namespace {

const Value& argument(const CallSpec& call, std::size_t at) {
  if (at >= call.arguments.size()) throw ScriptError(call.name + "() lacks arguments");
  return call.arguments[at];
}
int number(const CallSpec& call, std::size_t at) { return static_cast<int>(argument(call, at).number); }
std::size_t size(const CallSpec& call, std::size_t at) { return static_cast<std::size_t>(argument(call, at).number); }
int optional_number(const CallSpec& call, std::size_t at) {
  return at < call.arguments.size() ? static_cast<int>(call.arguments[at].number) : 0;
}

std::string differs(const std::string& what, std::int64_t expected, std::int64_t actual) {
  if (expected == actual) return {};
  return "Expected " + what + " " + std::to_string(expected) + " but got " + std::to_string(actual);
}

/// A socket address as the calls want it.
struct Address {
  sockaddr_storage bytes{};
  socklen_t length = 0;
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }
};

Address make_address(const Endpoint& from, bool v6) {
  Address out;
  if (v6) {
    sockaddr_in6 in{};
    in.sin6_family = AF_INET6;
    in.sin6_port = htons(from.port);
    std::memcpy(&in.sin6_addr, from.address.data(), sizeof in.sin6_addr);
    std::memcpy(&out.bytes, &in, out.length = sizeof in);
  } else {
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_port = htons(from.port);
    std::memcpy(&in.sin_addr, from.address.data() + 12, sizeof in.sin_addr);
    std::memcpy(&out.bytes, &in, out.length = sizeof in);
  }
  return out;
}

/// `...`, or {sa_family = AF_INET, sin_port = htons(8080), sin_addr = inet_addr("192.0.2.1")}.
Address read_address(const Value& value, Endpoint standard, bool v6) {
  if (value.kind == Value::Kind::ellipsis || value.kind == Value::Kind::null) return make_address(standard, v6);
  for (const char* name : {"sin_port", "sin6_port"})
    if (const Value* port = value.find(name)) standard.port = static_cast<std::uint16_t>(port->number);
  for (const char* name : {"sin_addr", "sin6_addr"}) {
    const Value* address = value.find(name);
    if (address == nullptr) continue;
    in_addr v4{};
    if (address->kind == Value::Kind::number) {
      const auto any = htonl(static_cast<std::uint32_t>(address->number));
      std::memcpy(standard.address.data() + (v6 ? 0 : 12), &any, sizeof any);
    } else if (inet_pton(AF_INET, address->text.c_str(), &v4) == 1) {
      std::memcpy(standard.address.data() + 12, &v4, sizeof v4);
    } else if (inet_pton(AF_INET6, address->text.c_str(), standard.address.data()) != 1) {
      throw ScriptError("bad address " + address->text);
    }
  }
  Address out = make_address(standard, v6);
  if (const Value* family = value.find("sa_family"); family != nullptr && family->number == AF_UNSPEC)
    out.bytes.ss_family = AF_UNSPEC;
  return out;
}

/// Buffers of a call: `[{..., 1000}, {..., 500}]`.
struct Pieces {
  std::vector<std::vector<char>> bytes;
  std::vector<iovec> list;
};

Pieces read_pieces(const Value& value) {
  Pieces out;
  for (const Field& piece : value.fields) {
    if (piece.value.fields.size() != 2) throw ScriptError("a buffer is {..., LENGTH}");
    const auto length = static_cast<std::size_t>(piece.value.fields[1].value.number);
    const std::string& text = piece.value.fields[0].value.text;
    out.bytes.emplace_back(length, 'x');
    std::copy_n(text.begin(), std::min(text.size(), length), out.bytes.back().begin());
    out.list.push_back({out.bytes.back().data(), length});
  }
  return out;
}

std::vector<char> contents(const Value& value, std::size_t size) {
  std::vector<char> out(size, 'x');
  std::copy_n(value.text.begin(), std::min(value.text.size(), size), out.begin());
  return out;
}

}  // namespace

int Calls::live_fd(std::int64_t script) const {
  const std::lock_guard lock(mutex_);
  const auto found = descriptors_.find(script);
  return found == descriptors_.end() ? -1 : found->second;
}

int Calls::fd(const CallSpec& call, std::size_t at) const { return live_fd(argument(call, at).number); }

void Calls::learn(std::int64_t script, std::int64_t live) {
  const std::lock_guard lock(mutex_);
  descriptors_[script] = static_cast<int>(live);
}

int Calls::subject() const {
  const std::lock_guard lock(mutex_);
  return subject_;
}

Calls::Result Calls::socket(const CallSpec& call) {
  const Value& domain = argument(call, 0);
  const int family =
      domain.kind == Value::Kind::ellipsis ? (v6_ ? AF_INET6 : AF_INET) : static_cast<int>(domain.number);
  return {table_.socket(table_.userdata, family, number(call, 1), number(call, 2)), {}, true};
}

Calls::Result Calls::bind(const CallSpec& call) {
  const Address address = read_address(argument(call, 1), local_, v6_);
  return {table_.bind(table_.userdata, fd(call), address.get(), address.length), {}};
}

Calls::Result Calls::listen(const CallSpec& call) {
  return {table_.listen(table_.userdata, fd(call), number(call, 1)), {}};
}

Calls::Result Calls::accept(const CallSpec& call) {
  sockaddr_storage from{};
  socklen_t length = sizeof from;
  const int got = table_.accept(table_.userdata, fd(call), reinterpret_cast<sockaddr*>(&from), &length);
  return {got, {}, true};
}

Calls::Result Calls::connect(const CallSpec& call) {
  const Address address = read_address(argument(call, 1), remote_, v6_);
  {
    const std::lock_guard lock(mutex_);
    const auto found = descriptors_.find(argument(call, 0).number);
    subject_ = found == descriptors_.end() ? -1 : found->second;
  }
  return {table_.connect(table_.userdata, fd(call), address.get(), address.length), {}};
}

/// read, recv, recvfrom.
Calls::Result Calls::receive(const CallSpec& call) {
  std::vector<char> bytes(size(call, 2));
  const int flags = optional_number(call, 3);
  const ssize_t got = call.name == "read"   ? table_.read(table_.userdata, fd(call), bytes.data(), bytes.size())
                      : call.name == "recv" ? table_.recv(table_.userdata, fd(call), bytes.data(), bytes.size(), flags)
                                            : table_.recvfrom(table_.userdata, fd(call), bytes.data(), bytes.size(),
                                                              flags, nullptr, nullptr);
  const Value& wanted = argument(call, 1);
  if (got >= 0 && wanted.kind == Value::Kind::text &&
      wanted.text != std::string(bytes.data(), static_cast<std::size_t>(got)))
    return {got, "the bytes differ"};
  return {got, {}};
}

/// write, send, sendto.
Calls::Result Calls::transmit(const CallSpec& call) {
  const std::vector<char> bytes = contents(argument(call, 1), size(call, 2));
  const int flags = optional_number(call, 3);
  if (call.name == "write") return {table_.write(table_.userdata, fd(call), bytes.data(), bytes.size()), {}};
  if (call.name == "send") return {table_.send(table_.userdata, fd(call), bytes.data(), bytes.size(), flags), {}};
  const bool named = call.arguments.size() > 4 && call.arguments[4].kind != Value::Kind::null;
  const Address to = named ? read_address(call.arguments[4], remote_, v6_) : Address{};
  const int live = fd(call);
  if ((flags & MSG_FASTOPEN) != 0) {
    const std::lock_guard lock(mutex_);
    subject_ = live;
  }
  return {
      table_.sendto(table_.userdata, live, bytes.data(), bytes.size(), flags, named ? to.get() : nullptr, to.length),
      {}};
}

Calls::Result Calls::receive_pieces(const CallSpec& call) {
  const Pieces pieces = read_pieces(argument(call, 1));
  return {table_.readv(table_.userdata, fd(call), pieces.list.data(), number(call, 2)), {}};
}

Calls::Result Calls::transmit_pieces(const CallSpec& call) {
  const Pieces pieces = read_pieces(argument(call, 1));
  return {table_.writev(table_.userdata, fd(call), pieces.list.data(), number(call, 2)), {}};
}

Calls::Result Calls::sendmsg(const CallSpec& call) {
  const Value& spec = argument(call, 1);
  Pieces pieces;
  if (const Value* list = spec.find("msg_iov")) pieces = read_pieces(*list);
  msghdr message{};
  message.msg_iov = pieces.list.data();
  message.msg_iovlen = pieces.list.size();
  return {table_.sendmsg(table_.userdata, fd(call), &message, optional_number(call, 2)), {}};
}

Calls::Result Calls::recvmsg(const CallSpec& call) {
  const Value& spec = argument(call, 1);
  Pieces pieces;
  if (const Value* list = spec.find("msg_iov")) pieces = read_pieces(*list);
  alignas(cmsghdr) std::array<char, 1024> control{};
  msghdr message{};
  message.msg_iov = pieces.list.data();
  message.msg_iovlen = pieces.list.size();
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t got = table_.recvmsg(table_.userdata, fd(call), &message, optional_number(call, 2));
  if (got < 0) return {got, {}};
  std::string wrong;
  if (const Value* flags = spec.find("msg_flags")) wrong = differs("msg_flags", flags->number, message.msg_flags);
  if (const Value* wanted = spec.find("msg_control"); wanted != nullptr && wrong.empty())
    wrong = compare_control(*wanted, message);
  return {got, wrong};
}

Calls::Result Calls::fcntl(const CallSpec& call) {
  return {table_.fcntl(table_.userdata, fd(call), number(call, 1), optional_number(call, 2)), {}};
}

Calls::Result Calls::ioctl(const CallSpec& call) {
  int value = 0;
  const int got = table_.ioctl(table_.userdata, fd(call), static_cast<unsigned long>(argument(call, 1).number), &value);
  const Value* wanted = call.arguments.size() > 2 ? &call.arguments[2] : nullptr;
  if (got < 0 || wanted == nullptr || wanted->fields.empty()) return {got, {}};
  return {got, differs("value", wanted->fields[0].value.number, value)};
}

Calls::Result Calls::close(const CallSpec& call) {
  const int live = fd(call);
  {
    const std::lock_guard lock(mutex_);
    descriptors_.erase(argument(call, 0).number);
    if (subject_ == live) subject_ = -1;
  }
  return {table_.close(table_.userdata, live), {}};
}

Calls::Result Calls::shutdown(const CallSpec& call) {
  return {table_.shutdown(table_.userdata, fd(call), number(call, 1)), {}};
}

Calls::Result Calls::getsockopt(const CallSpec& call) {
  const Value& wanted = argument(call, 3);
  const Value& length_of = argument(call, 4);
  std::array<char, 512> bytes{};
  socklen_t length = length_of.fields.empty() ? sizeof(int) : static_cast<socklen_t>(length_of.fields[0].value.number);
  length = std::min<socklen_t>(length, bytes.size());
  const int got = table_.getsockopt(table_.userdata, fd(call), number(call, 1), number(call, 2), bytes.data(), &length);
  if (got < 0 || wanted.kind == Value::Kind::ellipsis) return {got, {}};
  if (wanted.kind == Value::Kind::text) {
    const std::string text(bytes.data(), strnlen(bytes.data(), length));
    return {got, text == wanted.text ? "" : "Expected value " + wanted.text + " but got " + text};
  }
  std::string wrong;
  for (std::size_t i = 0; i < wanted.fields.size() && wrong.empty(); ++i) {  // numbers of 4 bytes, one after the other
    int value = 0;
    std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
    wrong = differs("value", wanted.fields[i].value.number, value);
  }
  return {got, wrong};
}

Calls::Result Calls::setsockopt(const CallSpec& call) {
  const Value& value = argument(call, 3);
  std::vector<char> bytes;
  const auto append = [&bytes](const auto& plain) {
    const auto* start = reinterpret_cast<const char*>(&plain);
    bytes.insert(bytes.end(), start, start + sizeof plain);
  };
  if (value.kind == Value::Kind::text) bytes.assign(value.text.begin(), value.text.end());
  for (const Field& field : value.fields) {
    if (field.name.starts_with("tv_"))
      append(static_cast<long>(field.value.number));
    else
      append(static_cast<int>(field.value.number));
  }
  if (bytes.empty()) append(static_cast<int>(value.number));
  const auto length = static_cast<socklen_t>(optional_number(call, 4));
  bytes.resize(std::max<std::size_t>(bytes.size(), length));
  return {table_.setsockopt(table_.userdata, fd(call), number(call, 1), number(call, 2), bytes.data(), length), {}};
}

Calls::Result Calls::poll(const CallSpec& call) {
  std::vector<pollfd> list;
  const auto field = [](const Value& of, const char* name) {
    const Value* found = of.find(name);
    return found == nullptr ? 0 : found->number;
  };
  const Value& spec = argument(call, 0);
  for (const Field& one : spec.fields)
    list.push_back({live_fd(field(one.value, "fd")), static_cast<short>(field(one.value, "events")), 0});
  const int got = table_.poll(table_.userdata, list.data(), static_cast<nfds_t>(number(call, 1)), number(call, 2));
  std::string wrong;
  for (std::size_t i = 0; i < list.size() && wrong.empty() && got >= 0; ++i)
    wrong = differs("revents", field(spec.fields[i].value, "revents"), list[i].revents);
  return {got, wrong};
}

Calls::Result Calls::epoll_create(const CallSpec& call) {
  return {table_.epoll_create(table_.userdata, number(call, 0)), {}, true};
}

Calls::Result Calls::epoll_ctl(const CallSpec& call) {
  epoll_event event{};
  const Value& spec = argument(call, 3);
  if (const Value* events = spec.find("events")) event.events = static_cast<std::uint32_t>(events->number);
  event.data.u64 = static_cast<std::uint64_t>(argument(call, 2).number);
  for (const char* name : {"fd", "u32", "u64", "ptr"})
    if (const Value* data = spec.find(name)) event.data.u64 = static_cast<std::uint64_t>(data->number);
  return {table_.epoll_ctl(table_.userdata, fd(call), number(call, 1), fd(call, 2), &event), {}};
}

Calls::Result Calls::epoll_wait(const CallSpec& call) {
  const auto most = std::clamp(number(call, 2), 0, 64);
  std::vector<epoll_event> list(64);
  const int got = table_.epoll_wait(table_.userdata, fd(call), list.data(), most, number(call, 3));
  const Value& spec = argument(call, 1);
  std::vector<const Value*> wanted;
  if (spec.kind == Value::Kind::record) wanted.push_back(&spec);
  if (spec.kind == Value::Kind::list)
    for (const Field& one : spec.fields) wanted.push_back(&one.value);
  std::string wrong;
  for (std::size_t i = 0; static_cast<int>(i) < got && i < wanted.size() && wrong.empty(); ++i) {
    if (const Value* events = wanted[i]->find("events")) wrong = differs("events", events->number, list[i].events);
    if (const Value* data = wanted[i]->find("fd"); data != nullptr && wrong.empty())
      wrong = differs("fd", data->number, list[i].data.fd);
  }
  return {got, wrong};
}

Calls::Result Calls::pipe(const CallSpec& call) {
  int ends[2] = {-1, -1};
  const int got = table_.pipe(table_.userdata, ends);
  const Value& names = argument(call, 0);
  for (std::size_t i = 0; got == 0 && i < std::min<std::size_t>(names.fields.size(), 2); ++i)
    learn(names.fields[i].value.number, ends[i]);
  return {got, {}};
}

Calls::Result Calls::splice(const CallSpec& call) {
  return {table_.splice(table_.userdata, fd(call, 0), nullptr, fd(call, 2), nullptr, size(call, 4),
                        static_cast<unsigned>(number(call, 5))),
          {}};
}

const std::map<std::string, Calls::Handler>& Calls::handlers() {
  static const std::map<std::string, Handler> all{{"socket", &Calls::socket},
                                                  {"bind", &Calls::bind},
                                                  {"listen", &Calls::listen},
                                                  {"accept", &Calls::accept},
                                                  {"connect", &Calls::connect},
                                                  {"read", &Calls::receive},
                                                  {"recv", &Calls::receive},
                                                  {"recvfrom", &Calls::receive},
                                                  {"readv", &Calls::receive_pieces},
                                                  {"recvmsg", &Calls::recvmsg},
                                                  {"write", &Calls::transmit},
                                                  {"send", &Calls::transmit},
                                                  {"sendto", &Calls::transmit},
                                                  {"writev", &Calls::transmit_pieces},
                                                  {"sendmsg", &Calls::sendmsg},
                                                  {"fcntl", &Calls::fcntl},
                                                  {"ioctl", &Calls::ioctl},
                                                  {"close", &Calls::close},
                                                  {"shutdown", &Calls::shutdown},
                                                  {"getsockopt", &Calls::getsockopt},
                                                  {"setsockopt", &Calls::setsockopt},
                                                  {"poll", &Calls::poll},
                                                  {"epoll_create", &Calls::epoll_create},
                                                  {"epoll_ctl", &Calls::epoll_ctl},
                                                  {"epoll_wait", &Calls::epoll_wait},
                                                  {"pipe", &Calls::pipe},
                                                  {"splice", &Calls::splice}};
  return all;
}

std::string Calls::run(const CallSpec& call) {
  const auto handler = handlers().find(call.name);
  if (handler == handlers().end()) return "unknown system call " + call.name + "()";
  errno = 0;
  const Result result = (this->*handler->second)(call);
  const int error = errno;
  const std::string start = "runtime error in " + call.name + " call: ";
  const bool fine =
      !call.result || *call.result == result.value || (result.new_descriptor && *call.result >= 0 && result.value >= 0);
  if (!fine) {
    std::string text =
        start + "Expected result " + std::to_string(*call.result) + " but got " + std::to_string(result.value);
    if (result.value < 0) text += " with errno " + std::to_string(error) + " (" + std::strerror(error) + ")";
    return text;
  }
  if (result.value < 0 && call.error != 0 && call.error != error)
    return start + "Expected errno " + std::to_string(call.error) + " (" + std::strerror(call.error) + ") but got " +
           std::to_string(error) + " (" + std::strerror(error) + ")";
  if (result.new_descriptor && call.result && result.value >= 0) {
    learn(*call.result, result.value);
    if (call.name == "accept") {
      const std::lock_guard lock(mutex_);
      subject_ = static_cast<int>(result.value);
    }
  }
  return result.wrong.empty() ? "" : start + result.wrong;
}

}  // namespace ringsock::packetdrill
