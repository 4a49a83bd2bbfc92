// Runs a fuzz target as an ordinary test: the stored inputs of $srcdir/tests/fuzz/corpus/NAME, every truncation of
// each, and pseudo-random inputs and mutations that are the same on each run.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Input = std::vector<std::uint8_t>;

constexpr unsigned kRandomInputs = 20000;
constexpr std::size_t kMaxRandomBytes = 512;

void run(const Input& input) {
  // A copy of exactly that size, so that AddressSanitizer sees a read beyond its end.
  const Input exact(input.begin(), input.end());
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

/// corpus/NAME for the program .../NAME_fuzz.
std::filesystem::path corpus_of(const char* program) {
  std::string name = std::filesystem::path(program).filename().string();
  if (name.starts_with("lt-")) name.erase(0, 3);  // libtool runs programs of a build tree under such a name
  name.erase(name.rfind("_fuzz"));
  const char* source = std::getenv("srcdir");  // set by automake's test driver
  return std::filesystem::path(source != nullptr ? source : ".") / "tests/fuzz/corpus" / name;
}

std::vector<Input> stored_inputs(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<Input> inputs;
  for (const auto& file : files) {
    std::ifstream stream(file, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
  }
  return inputs;
}

class RandomInputs {
 public:
  Input fresh() {
    Input input(below(kMaxRandomBytes));
    for (auto& byte : input) byte = any_byte();
    return input;
  }
  /// A few bytes overwritten, the length changed now and then.
  Input mutate(Input input) {
    for (std::size_t i = 0; i < 1 + below(4) && !input.empty(); ++i) input[below(input.size())] = any_byte();
    if (below(4) == 0) input.resize(below(2 * input.size() + 2));
    return input;
  }
  std::size_t below(std::size_t bound) { return std::uniform_int_distribution<std::size_t>(0, bound - 1)(engine_); }

 private:
  std::uint8_t any_byte() { return static_cast<std::uint8_t>(below(256)); }
  std::mt19937_64 engine_{20261121};
};

}  // namespace

int main(int, char** argv) {
  const auto folder = corpus_of(argv[0]);
  const auto inputs = stored_inputs(folder);
  if (inputs.empty()) {
    std::fprintf(stderr, "no stored input in %s\n", folder.c_str());
    return 1;
  }
  for (const auto& input : inputs) {
    for (std::size_t length = 0; length <= input.size(); ++length) {
      run(Input(input.begin(), input.begin() + static_cast<std::ptrdiff_t>(length)));
    }
  }
  RandomInputs random;
  for (unsigned i = 0; i < kRandomInputs; ++i) {
    run(i % 2 == 0 ? random.fresh() : random.mutate(inputs[random.below(inputs.size())]));
  }
  std::printf("%zu stored and %u random inputs\n", inputs.size(), kRandomInputs);
}
