// A program whose memory runs out: malloc(3) and its relatives fail when the test says so.
#pragma once

namespace ringsock::support {

/// Whether this build can do so. The sanitizers have allocators of their own.
bool can_fail_allocations();

enum class Failing { one, all_from_then_on };
/// From now on allocations of any thread are counted. The one of that number fails; the next one has number 1.
void fail_allocation(unsigned number, Failing which);
/// Ends that. Returns how many allocations have failed.
unsigned end_failures();

}  // namespace ringsock::support
