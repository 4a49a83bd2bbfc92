// The tables of buffers: what is written to the peer's, and read from ours.
#include "librsocket/buffer_tables.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "librsocket/saved_connection.h"
#include "tests/unit/rsocket/connection_parts.h"

namespace ringsock::rs {
namespace {

struct Tables : ConnectionParts {
  explicit Tables(std::uint8_t peer_flags = wire::kRsLocalOrderFlag | wire::kRsHasIomap)
      : ConnectionParts(settings(), terms_with_iomap(peer_flags)) {}
  /// Announces a buffer, whose control message is finished at once.
  void announce(const wire::PeerSge& buffer) {
    const auto slot = sends.take_control_slot();
    ASSERT_TRUE(slot);
    ASSERT_TRUE(tables.announce(*slot, 1, buffer));
    sends.finish(pair.sent.back().id);
  }
  /// The peer writes entry `index` of our table of receive buffers.
  void peer_writes(std::uint32_t index, const wire::PeerSge& entry) {
    std::memcpy(own_tables.data() + index * sizeof entry, &entry, sizeof entry);
  }

  static wire::RsConnect terms_with_iomap(std::uint8_t flags) {
    wire::RsConnect peer = terms_of_peer(flags);
    peer.iomap_size_scaled = wire::encode_iomap_size(8);
    return peer;
  }
  static QueueSettings settings() {
    QueueSettings settings;
    settings.iomap_entries = 2;
    return settings;
  }
};

TEST(BufferTables, APeerWithoutATableIsRefused) {
  Tables ours;
  const Status refused = ours.tables.start(wire::RsConnect{});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, EPROTO);
}

TEST(BufferTables, AnnouncementsTakeThePeersEntriesInTurn) {
  Tables ours;
  const wire::PeerSge buffer{0x1234, 9, 100};
  for (int round = 0; round < 3; ++round) ours.announce(buffer);
  // The first buffer was in the connect data, which counts as entry 0.
  ASSERT_EQ(ours.pair.sent.size(), 3u);
  EXPECT_EQ(ours.pair.sent[0].address, kPeerAddress + sizeof buffer);
  EXPECT_EQ(ours.pair.sent[1].address, kPeerAddress);
  EXPECT_EQ(ours.pair.sent[2].address, kPeerAddress + sizeof buffer);
  EXPECT_EQ(ours.pair.sent[0].key, kPeerKey);
  EXPECT_EQ(ours.pair.sent[0].payload, std::string(reinterpret_cast<const char*>(&buffer), sizeof buffer));
}

TEST(BufferTables, CreditsAloneTakeNoEntry) {
  Tables ours;
  const auto slot = ours.sends.take_control_slot();
  ASSERT_TRUE(slot && ours.tables.announce(*slot, 77, std::nullopt));
  EXPECT_EQ(ours.pair.sent[0].payload, "");
  EXPECT_EQ(ours.pair.sent[0].immediate, word_in_network_order({wire::RsOpcode::sgl, 77}));
  ours.announce({0x1234, 9, 100});
  EXPECT_EQ(ours.pair.sent[1].address, kPeerAddress + sizeof(wire::PeerSge));
}

TEST(BufferTables, APeerOfTheOtherByteOrderReadsItsOwn) {
  Tables ours(wire::kRsLocalOrderFlag ^ wire::kRsBigEndianHost);
  const wire::PeerSge buffer{0x1234, 9, 100};
  ours.announce(buffer);
  const wire::PeerSge swapped = wire::swap_bytes(buffer);
  EXPECT_EQ(ours.pair.sent[0].payload, std::string(reinterpret_cast<const char*>(&swapped), sizeof swapped));
}

TEST(BufferTables, AnAnnouncedBufferIsTakenOnce) {
  Tables ours;
  EXPECT_FALSE(ours.tables.take_announced());
  ours.peer_writes(1, {0x4000, 3, 64});
  const auto taken = ours.tables.take_announced();
  ASSERT_TRUE(taken);
  EXPECT_EQ(taken->addr, 0x4000u);
  EXPECT_EQ(taken->length, 64u);
  // The next one comes into the other entry.
  EXPECT_FALSE(ours.tables.take_announced());
  ours.peer_writes(0, {0x5000, 3, 32});
  EXPECT_TRUE(ours.tables.take_announced());
}

TEST(BufferTables, FindsAMappedBufferByAnOffsetWithinIt) {
  Tables ours;
  const wire::PeerIomap entry{1000, {0x8000, 4, 50}};
  std::memcpy(ours.own_tables.data() + BufferTables::kSglEntries * sizeof(wire::PeerSge) + sizeof entry, &entry,
              sizeof entry);
  EXPECT_FALSE(ours.tables.find_iomap(1000));
  ours.tables.take_iomap(1);
  ours.tables.take_iomap(2);  // none of ours
  EXPECT_TRUE(ours.tables.find_iomap(1000));
  EXPECT_TRUE(ours.tables.find_iomap(1049));
  EXPECT_FALSE(ours.tables.find_iomap(1050));
  EXPECT_FALSE(ours.tables.find_iomap(999));
}

TEST(BufferTables, APlaceBehindTheTablesIsImpossible) {
  Tables ours;
  SavedConnection saved{};
  ours.tables.save(saved);
  EXPECT_TRUE(ours.tables.is_possible(saved));
  saved.peer_sgl_next = kPeerEntries;
  EXPECT_FALSE(ours.tables.is_possible(saved));
  saved.peer_sgl_next = 0;
  saved.own_sgl_next = BufferTables::kSglEntries;
  EXPECT_FALSE(ours.tables.is_possible(saved));
}

TEST(BufferTables, ASuspendedConnectionProvesNoLife) {
  Tables ours;
  ours.core.state.store(ConnectionCore::kSuspended);
  EXPECT_TRUE(ours.tables.send_keepalive());
  EXPECT_TRUE(ours.pair.sent.empty());
  ours.core.state.store(0);
  EXPECT_TRUE(ours.tables.send_keepalive());
  ASSERT_EQ(ours.pair.sent.size(), 1u);
  EXPECT_EQ(ours.pair.sent[0].opcode, IBV_WR_RDMA_WRITE);
  EXPECT_EQ(ours.pair.sent[0].payload, "");
}

}  // namespace
}  // namespace ringsock::rs
