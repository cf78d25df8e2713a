// Where temporaries lie in an arena.
#pragma once
#include <cstdint>
#include <vector>

namespace smelt::plan {

// A temporary that lives in steps `begin` to `end`, both included.
struct Interval {
    int64_t nbytes, begin, end;
};

struct Placement {
    std::vector<int64_t> offsets;  // in bytes, one for each interval
    int64_t nbytes;                // of the arena
};

// Greedy by size: the largest first, each into the tightest gap left by those that live at the same time. Two that share a
// step never share a byte; offsets are multiples of `alignment`.
Placement place(const std::vector<Interval>& intervals, int64_t alignment);

}  // namespace smelt::plan
