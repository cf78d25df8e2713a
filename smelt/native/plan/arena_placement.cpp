#include "plan/arena_placement.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace smelt::plan {
namespace {

using PlacedInterval =
    std::tuple<int64_t, int64_t, int64_t, int64_t>;  // offset, end offset, begin step, end step

// The offset of the smallest gap that fits, else the end of all that are alive at the same time. `placed`: sorted by
// offset.
int64_t tightest_gap(const std::vector<PlacedInterval>& placed, const Interval& interval, int64_t size) {
    int64_t best = -1, best_gap = 0, top = 0;
    for (const auto& [offset, stop, first, last] : placed) {
        if (first > interval.end || last < interval.begin) continue;
        const int64_t gap = offset - top;
        if (gap >= size && (best < 0 || gap < best_gap)) {
            best = top;
            best_gap = gap;
        }
        top = std::max(top, stop);
    }
    return best < 0 ? top : best;
}

}  // namespace

Placement assign_offsets(const std::vector<Interval>& intervals, int64_t alignment) {
    std::vector<size_t> order(intervals.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
        const Interval &x = intervals[a], &y = intervals[b];
        return x.nbytes != y.nbytes ? x.nbytes > y.nbytes : x.begin < y.begin;
    });
    Placement made{std::vector<int64_t>(intervals.size()), 0};
    std::vector<PlacedInterval> placed;
    for (size_t i : order) {
        const Interval& interval = intervals[i];
        const int64_t nbytes = std::max<int64_t>(interval.nbytes, 1);
        const int64_t size = (nbytes + alignment - 1) / alignment * alignment;
        const int64_t offset = tightest_gap(placed, interval, size);
        made.offsets[i] = offset;
        made.nbytes = std::max(made.nbytes, offset + size);
        const PlacedInterval item{offset, offset + size, interval.begin, interval.end};
        placed.insert(std::upper_bound(placed.begin(), placed.end(), item), item);
    }
    return made;
}

}  // namespace smelt::plan
