// The cyclic buffer of a socket: datagrams lie one behind another in memory that the program reads, at constant
// distances.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/ethernet/arrival.h"
#include "core/ethernet/interface.h"
#include "core/verbs/handles.h"
#include "libvmacompat/process/cyclic_layout.h"

namespace ringsock::vma {

/// Datagrams are numbered. Number n is in stride n modulo the number of strides.
///
///     given back   read           written        given back + strides     (numbers)
///     | the        | unread       | free         |
///     | program's  |              |              |
///
/// What a read returns is the program's until its next read, which gives it back. What comes while nothing is free is
/// dropped. A read returns strides in a row, so it ends at the end of the buffer. Threads: one at a time.
class CyclicBuffer {
 public:
  /// @param memory  of the application; nothing: the buffer has memory of its own
  /// Errors: EINVAL there is too little of it; ENOMEM.
  static Result<std::unique_ptr<CyclicBuffer>> make(const CyclicLayout& layout, const std::optional<iovec>& memory);
  CyclicBuffer(const CyclicBuffer&) = delete;
  CyclicBuffer& operator=(const CyclicBuffer&) = delete;
  ~CyclicBuffer();

  /// Copies a datagram. Returns false when there is no room, or the datagram is longer than a stride.
  bool put(const ethernet::Packet& packet);

  struct Batch {
    std::size_t packets = 0;
    std::span<std::byte> payload{};  ///< whole strides
    std::span<std::byte> headers{};  ///< whole strides of headers
    Nanos time{};                    ///< of the first one's arrival, CLOCK_REALTIME; 0: not known
  };
  /// Begins a read: what the last one has returned is given back.
  void begin_read();
  /// Returns whether a read may return now: there are so many, or those up to the end of the buffer.
  [[nodiscard]] bool has(std::size_t least) const;
  /// Returns so many at most, in a row; none if there are none.
  Batch take(std::size_t most);
  [[nodiscard]] bool has_unread() const { return read_ != written_; }
  [[nodiscard]] std::size_t free_strides() const { return given_back_ + layout_.packets - written_; }

  /// All memory: payloads, then headers.
  [[nodiscard]] std::span<std::byte> memory() const { return memory_; }
  /// Returns the key by which a device may access it. Registers it at the first call. Errors: those of ibv_reg_mr(3).
  Result<std::uint32_t> key(const std::shared_ptr<ethernet::Interface>& interface);

 private:
  CyclicBuffer(const CyclicLayout& layout, std::span<std::byte> memory, bool is_own);
  [[nodiscard]] std::uint64_t end_of_row() const;
  [[nodiscard]] std::size_t unread_in_row() const;
  [[nodiscard]] std::span<std::byte> stride(std::uint64_t number, std::size_t count) const;
  [[nodiscard]] std::span<std::byte> header_stride(std::uint64_t number, std::size_t count) const;

  const CyclicLayout layout_;
  const std::span<std::byte> memory_;
  const bool is_own_;
  std::vector<Nanos> times_;
  std::uint64_t given_back_ = 0, read_ = 0, written_ = 0;
  std::shared_ptr<ethernet::Interface> interface_;
  verbs::Mr registration_;
};

}  // namespace ringsock::vma
