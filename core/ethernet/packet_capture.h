// Copies of the packets of a ring, in a file that tcpdump(1) and Wireshark read.
#pragma once

#include <infiniband/verbs.h>
#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/base/mutex.h"
#include "core/base/unique_fd.h"
#include "core/ethernet/incoming.h"

namespace ringsock::ethernet {

/// A file in pcap format (pcap-savefile(5)) with times in nanoseconds. Each packet is written at once, so nothing is
/// lost when the process is killed, and costs two system calls. Checksums that the device fills in are not there yet,
/// and TCP segments that leave together are one packet. Threads: any.
class PacketCapture {
 public:
  /// Makes the file, which must not be there, for its owner only. Logs what is wrong, and returns null then.
  /// @param left  bytes that files may still take, which this one counts down; it stays as long as the file
  static std::unique_ptr<PacketCapture> create(const std::string& path, std::atomic<std::uint64_t>& left);
  PacketCapture(const PacketCapture&) = delete;
  PacketCapture& operator=(const PacketCapture&) = delete;

  /// Writes a packet. errno is kept.
  void note(std::span<const std::byte> headers, std::span<const iovec> payload) noexcept;
  void note_received(const Packet& packet) noexcept;
  /// Writes what a work request sends, whose memory this process may read.
  void note_request(const ibv_send_wr& request) noexcept;
  /// Writes what a request for several packets sends: datagrams one by one.
  /// @param headers  of the first one, or of a TCP packet that the device cuts
  void note_segments(std::span<const std::byte> headers, std::span<const iovec> payload,
                     std::size_t segment_bytes) noexcept;

 private:
  PacketCapture(UniqueFd file, std::string path, std::atomic<std::uint64_t>& left);
  bool reserve(std::uint64_t bytes) noexcept;
  void write(std::span<const iovec> parts, std::size_t bytes) noexcept;
  void stop(const char* why) noexcept;
  [[nodiscard]] bool is_ours() const noexcept;

  const UniqueFd file_;
  const std::string path_;
  std::atomic<std::uint64_t>& left_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  std::atomic<bool> is_over_{false};
  Mutex lock_;
};

}  // namespace ringsock::ethernet
