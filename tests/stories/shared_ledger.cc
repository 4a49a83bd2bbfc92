#include "tests/stories/shared_ledger.h"

#include <sys/mman.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <string>

namespace ringsock::stories {

namespace {

std::byte stream_byte(std::uint64_t seed, std::uint64_t position) {
  // One step of splitmix64 per byte: a byte that is lost, repeated or moved does not go unnoticed.
  std::uint64_t mixed = seed + position * 0x9e3779b97f4a7c15u;
  mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9u;
  return static_cast<std::byte>(mixed >> 56);
}

}  // namespace

Ledger& Ledger::create() {
  void* memory = mmap(nullptr, sizeof(Ledger), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  return *new (memory) Ledger{};
}

void Ledger::clear() { offered = sent = received = acked = 0; }

void fill_stream(std::span<std::byte> out, std::uint64_t seed, std::uint64_t position) {
  for (std::byte& byte : out) byte = stream_byte(seed, position++);
}

std::size_t first_difference(std::span<const std::byte> bytes, std::uint64_t seed, std::uint64_t position) {
  std::size_t i = 0;
  while (i < bytes.size() && bytes[i] == stream_byte(seed, position + i)) ++i;
  return i;
}

Holdings Holdings::now() {
  Holdings held;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++held.descriptors;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) held.memory_files += line.find("/memfd:") != std::string::npos;
  return held;
}

}  // namespace ringsock::stories
