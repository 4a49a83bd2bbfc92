// Datagrams that come in pieces, because they are longer than the path's MTU.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>

#include "core/base/clock.h"
#include "core/base/socket_address.h"
#include "core/wire/rs_datagram.h"

namespace ringsock::rs {

/// Puts pieces together. Nobody sends a lost piece again, so a datagram that is not whole after kPatience is given up.
/// Bounded in number and in bytes: then the oldest are given up. Refused pieces and datagrams are counted. Threads: the
/// caller's lock.
class Pieces {
 public:
  static constexpr std::size_t kMost = 64;      ///< datagrams under way
  static constexpr std::size_t kMostOfOne = 4;  ///< of those, of one sender: an honest one has one or two
  static constexpr Nanos kPatience = std::chrono::seconds(1);

  explicit Pieces(std::size_t most_bytes) : most_bytes_(most_bytes) {}
  void set_limit(std::size_t most_bytes) { most_bytes_ = most_bytes; }

  struct Whole {
    std::unique_ptr<std::byte[]> memory;
    std::size_t bytes;
  };
  /// Takes a piece. Returns the datagram when it is whole.
  /// @param from  the sender's queue pair
  std::optional<Whole> add(const wire::ParsedRsFragment& piece, std::uint32_t from, Nanos now);
  void clear();

  [[nodiscard]] std::size_t under_way() const { return parts_.size(); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  static constexpr std::size_t kMostPieces = wire::kMaxRsLarge / wire::kFewestPieceBytes + 1;
  struct Part {
    SocketAddress source;
    std::uint32_t from = 0;
    std::uint32_t datagram = 0;
    std::size_t total_bytes = 0;
    std::size_t piece_bytes = 0;
    Nanos began{};
    std::size_t missing = 0;  ///< pieces
    std::bitset<kMostPieces> came;
    std::unique_ptr<std::byte[]> memory;

    [[nodiscard]] bool is_of(const wire::ParsedRsFragment& piece, std::uint32_t by) const {
      return datagram == piece.datagram && from == by && source == piece.source;
    }
  };
  using Place = std::list<Part>::iterator;
  Place find_or_begin(const wire::ParsedRsFragment& piece, std::uint32_t from, Nanos now);
  [[nodiscard]] bool make_room(const wire::ParsedRsFragment& piece, std::uint32_t from, Nanos now);
  void give_up(Place part);

  std::list<Part> parts_;  ///< the oldest first
  std::size_t most_bytes_;
  std::size_t bytes_ = 0;  ///< of their memory
};

}  // namespace ringsock::rs
