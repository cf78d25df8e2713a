#include "plan/arena_placement.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "module.h"
#include "torch_python.h"

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

PyObject* py_assign_arena_offsets(PyObject*, PyObject* args) {
    PyObject* intervals_object = nullptr;
    long long alignment = 0;
    if (!PyArg_ParseTuple(args, "OL:assign_arena_offsets", &intervals_object, &alignment)) return nullptr;
    HANDLE_TH_ERRORS
    if (alignment < 1) throw py::value_error("assign_arena_offsets: an alignment is at least 1");
    std::vector<Interval> intervals;
    for (py::handle h : py::reinterpret_borrow<py::object>(intervals_object)) {
        const auto [nbytes, begin, end] = h.cast<std::tuple<int64_t, int64_t, int64_t>>();
        intervals.push_back({nbytes, begin, end});
    }
    const Placement placement = assign_offsets(intervals, alignment);
    return py::make_tuple(placement.offsets, placement.nbytes).release().ptr();
    END_HANDLE_TH_ERRORS
}

PyMethodDef arena_placement_functions[] = {
    {"assign_arena_offsets", py_assign_arena_offsets, METH_VARARGS,
     "assign_arena_offsets(intervals, alignment) -> (offsets, bytes): offsets of temporaries in an "
     "arena, and its size. An interval is (bytes, first step, last step)."},
    {nullptr, nullptr, 0, nullptr}};

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

int init_arena_placement(PyObject* module) {
    return PyModule_AddFunctions(module, arena_placement_functions);
}

}  // namespace smelt::plan
