// What a call pays to find the endpoint of its descriptor.
#include "core/runtime/fd_table.h"

#include <benchmark/benchmark.h>

#include "tests/fakes/fake_endpoint.h"

namespace ringsock::runtime {
namespace {

void BM_FindOurs(benchmark::State& state) {
  const fakes::OpenFake fake;
  int fd = fake.fd();
  for (auto _ : state) {
    benchmark::DoNotOptimize(fd);
    const FdTable::Lookup lookup = fd_table().find(fd);
    benchmark::DoNotOptimize(static_cast<bool>(lookup));
  }
}
BENCHMARK(BM_FindOurs);

void BM_FindKernels(benchmark::State& state) {
  const fakes::OpenFake fake;
  int fd = fake.fd() + 1;
  for (auto _ : state) {
    benchmark::DoNotOptimize(fd);
    const FdTable::Lookup lookup = fd_table().find(fd);
    benchmark::DoNotOptimize(static_cast<bool>(lookup));
  }
}
BENCHMARK(BM_FindKernels);

void BM_FindAndPin(benchmark::State& state) {
  const fakes::OpenFake fake;
  for (auto _ : state) {
    FdTable::Lookup lookup = fd_table().find(fake.fd());
    lookup.pin();
  }
}
BENCHMARK(BM_FindAndPin);

void BM_InsertAndRemove(benchmark::State& state) {
  const fakes::OpenFake fake;
  FdTable& table = fd_table();
  constexpr int kUnused = 100'000;
  for (auto _ : state) {
    benchmark::DoNotOptimize(static_cast<bool>(table.insert(kUnused, Ref::share(*fake))));
    benchmark::DoNotOptimize(static_cast<bool>(table.remove(kUnused)));
  }
}
BENCHMARK(BM_InsertAndRemove);

}  // namespace
}  // namespace ringsock::runtime

BENCHMARK_MAIN();
