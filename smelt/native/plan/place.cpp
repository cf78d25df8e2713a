#include "plan/place.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "module.h"
#include "torch_python.h"

namespace smelt::plan {
namespace {

using Placed = std::tuple<int64_t, int64_t, int64_t, int64_t>;  // offset, end offset, begin step, end step

// The offset of the smallest gap that fits, else the end of all that live at the same time. `placed`: by offset.
int64_t tightest_gap(const std::vector<Placed>& placed, const Interval& interval, int64_t size) {
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

PyObject* place_for_python(PyObject*, PyObject* args) {
    PyObject* given = nullptr;
    long long alignment = 0;
    if (!PyArg_ParseTuple(args, "OL:place", &given, &alignment)) return nullptr;
    HANDLE_TH_ERRORS
    if (alignment < 1) throw py::value_error("place: an alignment is at least 1");
    std::vector<Interval> intervals;
    for (py::handle h : py::reinterpret_borrow<py::object>(given)) {
        const auto [nbytes, begin, end] = h.cast<std::tuple<int64_t, int64_t, int64_t>>();
        intervals.push_back({nbytes, begin, end});
    }
    const Placement placement = place(intervals, alignment);
    return py::make_tuple(placement.offsets, placement.nbytes).release().ptr();
    END_HANDLE_TH_ERRORS
}

PyMethodDef place_functions[] = {
    {"place", place_for_python, METH_VARARGS,
     "place(intervals, alignment) -> (offsets, bytes): where temporaries lie in an "
     "arena. Each is given as (bytes, first "
     "step, last step)."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

Placement place(const std::vector<Interval>& intervals, int64_t alignment) {
    std::vector<size_t> order(intervals.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
        const Interval &x = intervals[a], &y = intervals[b];
        return x.nbytes != y.nbytes ? x.nbytes > y.nbytes : x.begin < y.begin;
    });
    Placement made{std::vector<int64_t>(intervals.size()), 0};
    std::vector<Placed> placed;
    for (size_t i : order) {
        const Interval& interval = intervals[i];
        const int64_t nbytes = std::max<int64_t>(interval.nbytes, 1);
        const int64_t size = (nbytes + alignment - 1) / alignment * alignment;
        const int64_t offset = tightest_gap(placed, interval, size);
        made.offsets[i] = offset;
        made.nbytes = std::max(made.nbytes, offset + size);
        const Placed item{offset, offset + size, interval.begin, interval.end};
        placed.insert(std::upper_bound(placed.begin(), placed.end(), item), item);
    }
    return made;
}

int init_place(PyObject* module) {
    return PyModule_AddFunctions(module, place_functions);
}

}  // namespace smelt::plan
