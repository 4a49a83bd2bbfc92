#include "libvmacompat/udp/library_options.h"

#include <mellanox/vma_extra.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/base/user_memory.h"
#include "core/extra_api/ring_alloc_logic.h"
#include "libvmacompat/process/vma_process.h"
#include "libvmacompat/udp/pacing_rate.h"

namespace ringsock::vma {

namespace {

constexpr int kMapAdd = 101, kMapRemove = 102;  // of level IPPROTO_UDP
/// A tag has 20 bits; all of them set stands for none.
constexpr std::uint32_t kNoFlowTag = 0xFFFFF;

/// Reads a value of exactly that length.
template <class Value>
Status read(const void* value, socklen_t length, Value& out) {
  if (length != sizeof out || value == nullptr) return Error{EINVAL, "setsockopt: length"};
  if (!is_readable(value, sizeof out)) return Error{EFAULT, "setsockopt"};
  std::memcpy(&out, value, sizeof out);
  return ok();
}

template <class Value>
Status write(Value value, void* out, socklen_t* length) {
  if (*length < sizeof value) return Error{EINVAL, "getsockopt: length"};
  if (!is_writable(out, sizeof value)) return Error{EFAULT, "getsockopt"};
  std::memcpy(out, &value, sizeof value);
  *length = sizeof value;
  return ok();
}

}  // namespace

bool LibraryOptions::is_set_here(int level, int name, socklen_t length) {
  if (level == IPPROTO_UDP) return (name == kMapAdd || name == kMapRemove) && length == sizeof(in_port_t);
  return level == SOL_SOCKET &&
         (name == SO_VMA_USER_DATA || name == SO_VMA_RING_ALLOC_LOGIC || name == SO_VMA_RING_USER_MEMORY ||
          name == SO_VMA_FLOW_TAG || name == SO_VMA_SHUTDOWN_RX || name == SO_MAX_PACING_RATE);
}

bool LibraryOptions::is_got_here(int level, int name) {
  return level == SOL_SOCKET && (name == SO_VMA_USER_DATA || name == SO_VMA_FLOW_TAG || name == SO_MAX_PACING_RATE);
}

Status LibraryOptions::set(int level, int name, const void* value, socklen_t length) {
  if (level == IPPROTO_UDP) return map_port(name == kMapAdd, value);
  switch (name) {
    case SO_VMA_RING_ALLOC_LOGIC: return set_ring_logic(value, length);
    case SO_VMA_RING_USER_MEMORY: return set_ring_memory(value, length);
    case SO_VMA_FLOW_TAG: return set_flow_tag(value, length);
    case SO_MAX_PACING_RATE: return set_pace(value, length);
    case SO_VMA_SHUTDOWN_RX: flows_.stop_receiving(); return ok();
    default: break;
  }
  void* data = nullptr;
  if (Status fine = read(value, length, data); !fine) return fine;
  queue_.whole().set_user_data(reinterpret_cast<std::uintptr_t>(data));
  user_data_.store(data, std::memory_order_relaxed);
  has_user_data_.store(true, std::memory_order_release);
  return ok();
}

Status LibraryOptions::get(int name, void* value, socklen_t* length) const {
  if (name == SO_MAX_PACING_RATE) return write_pacing_rate(sender_.pacer().rate(), value, length);
  if (name == SO_VMA_FLOW_TAG) return write(flow_tag_.load(std::memory_order_relaxed), value, length);
  if (has_user_data_.load(std::memory_order_acquire))
    return write(user_data_.load(std::memory_order_relaxed), value, length);
  return write(static_cast<std::uintptr_t>(kernel_.fd()), value, length);
}

Status LibraryOptions::set_ring_logic(const void* value, socklen_t length) {
  if (value != nullptr && !is_readable(value, length)) return Error{EFAULT, "SO_VMA_RING_ALLOC_LOGIC"};
  const auto wish = parse_ring_alloc_logic(value, length);
  if (!wish) return wish.error();
  if (wish->profile_key != 0) {
    const bool is_another = profile_key_ != 0 && profile_key_ != wish->profile_key;
    const auto profile = process().profiles.find(wish->profile_key);
    if (is_another || !profile) return Error{EINVAL, "SO_VMA_RING_ALLOC_LOGIC: profile"};
    if (wish->for_receiving) {
      if (Status made = make_cyclic_buffer(*profile); !made) return made;
    }
    profile_key_ = wish->profile_key;
  }
  if (wish->for_sending) sender_.set_logic(wish->logic, wish->user_id);
  if (wish->for_receiving) {
    queue_.set_logic(wish->logic, wish->user_id);
    if (flows_.known_ethernet() != nullptr) flows_.move();
  }
  return ok();
}

/// Does nothing for profiles of other types.
Status LibraryOptions::make_cyclic_buffer(const RingProfiles::Profile& profile) {
  auto layout = cyclic_layout_of(profile);
  if (!layout) return layout.error();
  if (!*layout || queue_.whole().has_cyclic()) return ok();
  constexpr std::size_t kV6Headers = 14 + 40 + 8;
  if (kernel_.domain() == AF_INET6) (*layout)->network_header_bytes = kV6Headers;
  auto buffer = CyclicBuffer::make(**layout, ring_memory_);
  if (!buffer) return buffer.error();
  queue_.whole().put_into(*std::move(buffer));
  return ok();
}

Status LibraryOptions::set_flow_tag(const void* value, socklen_t length) {
  std::uint32_t tag = 0;
  if (Status fine = read(value, length, tag); !fine) return fine;
  if (tag == 0 || tag >= kNoFlowTag) return Error{EINVAL, "SO_VMA_FLOW_TAG"};
  flow_tag_.store(tag, std::memory_order_relaxed);
  return ok();
}

/// The kernel's socket has the same rate, for when it sends.
Status LibraryOptions::set_pace(const void* value, socklen_t length) {
  const auto rate = parse_pacing_rate(value, length);
  if (!rate) return rate.error();
  if (Status set = set_kernels_pacing_rate(kernel_.fd(), *rate); !set) return set;
  sender_.set_pace(*rate);
  return ok();
}

Status LibraryOptions::set_ring_memory(const void* value, socklen_t length) {
  iovec memory{};
  if (Status fine = read(value, length, memory); !fine) return fine;
  if (memory.iov_base == nullptr || memory.iov_len == 0) return Error{EINVAL, "SO_VMA_RING_USER_MEMORY"};
  if (!is_writable(memory.iov_base, memory.iov_len)) return Error{EFAULT, "SO_VMA_RING_USER_MEMORY"};
  ring_memory_ = memory;
  return ok();
}

Status LibraryOptions::map_port(bool adds, const void* value) {
  std::uint16_t port = 0;
  if (Status fine = read(value, sizeof port, port); !fine) return fine;
  const auto known = std::find(mapped_ports_.begin(), mapped_ports_.end(), port);
  if (adds && known == mapped_ports_.end()) {
    if (mapped_ports_.size() == kMostMappedPorts) return Error{ENOBUFS, "UDP_MAP_ADD"};
    mapped_ports_.push_back(port);
  }
  if (!adds && known == mapped_ports_.end()) return Error{EINVAL, "UDP_MAP_REMOVE"};
  if (!adds) mapped_ports_.erase(known);
  return ok();
}

}  // namespace ringsock::vma
