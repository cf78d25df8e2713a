// Arena placement: the offsets of temporaries in a plan's arena.
#pragma once
#include <cstdint>
#include <vector>

namespace smelt::plan {

// A temporary that is alive from step `begin` to step `end`, both included.
struct Interval {
    int64_t nbytes, begin, end;
};

struct Placement {
    std::vector<int64_t> offsets;  // in bytes, one per interval
    int64_t nbytes;                // of the arena
};

// Places the largest temporaries first, each into the tightest gap between those that are alive at the same time. Two
// temporaries that share a step never share a byte; offsets are multiples of `alignment`.
Placement assign_offsets(const std::vector<Interval>& intervals, int64_t alignment);

}  // namespace smelt::plan
