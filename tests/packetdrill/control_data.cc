#include "tests/packetdrill/control_data.h"

#include <linux/errqueue.h>
#include <netinet/in.h>

#include <cstring>
#include <utility>

namespace ringsock::packetdrill {
namespace {

std::string differs(const std::string& what, std::int64_t expected, std::int64_t actual) {
  if (expected == actual) return {};
  return "Expected " + what + " " + std::to_string(expected) + " but got " + std::to_string(actual);
}

std::string compare_error(const Value& wanted, const unsigned char* data) {
  sock_extended_err error;
  std::memcpy(&error, data, sizeof error);
  const std::pair<const char*, std::int64_t> parts[] = {{"ee_errno", error.ee_errno}, {"ee_origin", error.ee_origin},
                                                        {"ee_type", error.ee_type},   {"ee_code", error.ee_code},
                                                        {"ee_info", error.ee_info},   {"ee_data", error.ee_data}};
  for (const auto& [name, actual] : parts) {
    const Value* expected = wanted.find(name);
    if (expected == nullptr) continue;
    if (auto wrong = differs(name, expected->number, actual); !wrong.empty()) return wrong;
  }
  return {};
}

std::string compare_one(const Value& wanted, const cmsghdr& got) {
  const auto field = [&wanted](const char* name) {
    const Value* found = wanted.find(name);
    return found == nullptr ? 0 : found->number;
  };
  std::string wrong = differs("cmsg_level", field("cmsg_level"), got.cmsg_level);
  if (wrong.empty()) wrong = differs("cmsg_type", field("cmsg_type"), got.cmsg_type);
  const Value* data = wanted.find("cmsg_data");
  if (!wrong.empty() || data == nullptr) return wrong;
  if (data->find("ee_errno") != nullptr) return compare_error(*data, CMSG_DATA(&got));
  if (data->kind != Value::Kind::number) return {};
  int value = 0;
  std::memcpy(&value, CMSG_DATA(&got), sizeof value);
  return differs("cmsg_data", data->number, value);
}

}  // namespace

std::string compare_control(const Value& wanted, msghdr& message) {
  const cmsghdr* got = message.msg_controllen == 0 ? nullptr : CMSG_FIRSTHDR(&message);
  for (const Field& one : wanted.fields) {
    if (got == nullptr) return "Expected another control message";
    if (auto wrong = compare_one(one.value, *got); !wrong.empty()) return wrong;
    got = CMSG_NXTHDR(&message, const_cast<cmsghdr*>(got));
  }
  return got == nullptr ? "" : "Expected no further control message, but got type " + std::to_string(got->cmsg_type);
}

}  // namespace ringsock::packetdrill
