// What smelt asks of the interpreter while it compiles, without a setting that other threads could see.
//
// Python's own functions for both set them for the whole process: `sys.setrecursionlimit`, `gc.disable`.
#include <climits>

#include "calls/state.h"

namespace smelt::calls {
namespace {

PyObject* py_set_thread_recursion_limit(PyObject*, PyObject* arg) {
    long limit = PyLong_AsLong(arg);
    if (limit == -1 && PyErr_Occurred()) return nullptr;
    if (limit < 1 || limit > INT_MAX)
        return PyErr_Format(PyExc_ValueError, "set_thread_recursion_limit: %ld is no limit", limit);
    int before = set_thread_recursion_limit(PyThreadState_Get(), static_cast<int>(limit));
    return PyLong_FromLong(before);
}

// Collections are due when the count of new objects passes a threshold; a count far below zero takes its time.
constexpr int kPostponed = INT_MIN / 2;

PyObject* py_postpone_collections(PyObject*, PyObject* arg) {
    int on = PyObject_IsTrue(arg);
    if (on < 0) return nullptr;
    int& count = PyThreadState_Get()->interp->gc.generations[0].count;
    bool were = count < 0;
    if (on)
        count = kPostponed;
    else if (were)
        count = 0;
    return PyBool_FromLong(were);
}

PyMethodDef functions[] = {
    {"set_thread_recursion_limit", py_set_thread_recursion_limit, METH_O,
     "set_thread_recursion_limit(limit): how deep this thread alone may call; gives what was so before."},
    {"postpone_collections", py_postpone_collections, METH_O,
     R"(postpone_collections(on): whether the collector waits, until it is called for; gives what was so before.)"},
    {}};

}  // namespace

int init_interpreter(PyObject* module) {
    return PyModule_AddFunctions(module, functions);
}

}  // namespace smelt::calls
