// Placement of temporaries in arenas, and the allocator for large blocks, for Python.
#include <tuple>
#include <vector>

#include "module.h"
#include "plan/arena_placement.h"
#include "plan/caching_allocator.h"
#include "torch_python.h"

namespace smelt::plan {
namespace {

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

PyMethodDef memory_functions[] = {
    {"assign_arena_offsets", py_assign_arena_offsets, METH_VARARGS,
     "assign_arena_offsets(intervals, alignment) -> (offsets, bytes): offsets of temporaries in an "
     "arena, and its size. An interval is (bytes, first step, last step)."},
    {"release_cached_blocks", [](PyObject*, PyObject*) { return PyLong_FromSize_t(release_cached_blocks()); },
     METH_NOARGS, "Frees the cached blocks of the allocator for large blocks; returns their bytes."},
    {"cached_block_bytes", [](PyObject*, PyObject*) { return PyLong_FromSize_t(cached_block_bytes()); },
     METH_NOARGS, "Bytes of the cached blocks."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int init_plan_memory(PyObject* module) {
    return PyModule_AddFunctions(module, memory_functions);
}

}  // namespace smelt::plan
