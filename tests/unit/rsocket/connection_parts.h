// What the parts of a connection stand on: a queue pair that notes what is sent, and a peer with a table of buffers.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/wire/rs_connect.h"
#include "librsocket/buffer_tables.h"
#include "tests/fakes/fake_device.h"
#include "tests/fakes/fake_queue_pair.h"

namespace ringsock::rs {

constexpr std::uint64_t kPeerAddress = 0x10000;
constexpr std::uint32_t kPeerKey = 5;
constexpr std::uint32_t kPeerEntries = 2;  ///< of the peer's table

/// What such a peer says when the connection is made.
inline wire::RsConnect terms_of_peer(std::uint8_t flags = wire::kRsLocalOrderFlag) {
  wire::RsConnect peer{};
  peer.flags = flags;
  peer.target_sgl = {wire::Be64(kPeerAddress), wire::Be32(kPeerKey), wire::Be32(kPeerEntries)};
  return peer;
}

struct ConnectionParts {
  ConnectionParts(const QueueSettings& settings, const wire::RsConnect& peer)
      : core{device, settings}, own_tables(BufferTables::size(settings)) {
    core.qp = &pair.qp();
    sends.begin(pair.qp(), true, {});
    tables.begin(own_tables.data());
    EXPECT_TRUE(tables.start(peer));
  }

  fakes::FakeDevice device;
  fakes::FakeQueuePair pair;
  ConnectionCore core;
  SendRequests sends{core.ends, 16, false};
  BufferTables tables{core, sends};
  std::vector<std::byte> own_tables;
};

}  // namespace ringsock::rs
