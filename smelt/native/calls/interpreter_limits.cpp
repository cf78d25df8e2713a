// Per-thread interpreter limits while smelt compiles: recursion limit, garbage collection.
//
// Python's own functions for both change the whole process: `sys.setrecursionlimit`, `gc.disable`.
#include "cpython.h"

#include <climits>

#include "calls/thread_state.h"

namespace smelt::calls {
namespace {

PyObject* py_set_thread_recursion_limit(PyObject*, PyObject* arg) {
    long limit = PyLong_AsLong(arg);
    if (limit == -1 && PyErr_Occurred()) return nullptr;
    if (limit < 1 || limit > INT_MAX)
        return PyErr_Format(PyExc_ValueError, "set_thread_recursion_limit: %ld is not a valid limit", limit);
    int before = set_thread_recursion_limit(PyThreadState_Get(), static_cast<int>(limit));
    return PyLong_FromLong(before);
}

PyObject* py_call_within(PyObject*, PyObject* const* args, Py_ssize_t count) {
    long levels = count > 1 ? PyLong_AsLong(args[0]) : -1;
    if (levels < 0) {
        PyErr_Clear();
        return PyErr_Format(PyExc_ValueError,
                            "call_within(levels, function, ...): expected a number of levels");
    }
    const Shallow within(levels);
    return PyObject_Vectorcall(args[1], args + 2, count - 2, nullptr);
}

// A collection is due when the count of new objects passes a threshold; a count far below zero postpones it.
constexpr int kPostponed = INT_MIN / 2;

PyObject* py_postpone_collections(PyObject*, PyObject* arg) {
    int on = PyObject_IsTrue(arg);
    if (on < 0) return nullptr;
    int& count = young_count(PyThreadState_Get());
    bool were = count < 0;
    if (on)
        count = kPostponed;
    else if (were)
        count = 0;
    return PyBool_FromLong(were);
}

PyObject* py_raise_at(PyObject*, PyObject* const* args, Py_ssize_t count) {
    Py_ssize_t offset = count == 2 ? PyLong_AsSsize_t(args[1]) : -1;
    Frame* frame = current_frame(PyThreadState_Get());  // the caller's frame: C functions have none
    if (offset < 0 || !PyExceptionInstance_Check(args[0]) || offset >= code_size(frame_code(frame))) {
        PyErr_Clear();
        return PyErr_Format(PyExc_ValueError, "raise_at(error, offset): no such offset in the caller's code");
    }
    show_at(frame, offset);
    raise_again(args[0]);
    return nullptr;
}

PyObject* py_send(PyObject*, PyObject* const* args, Py_ssize_t count) {
    if (count != 2) return PyErr_Format(PyExc_TypeError, "send: two arguments");
    PyObject* value = nullptr;
    PySendResult how = PyIter_Send(args[0], args[1], &value);
    if (how == PYGEN_ERROR) return nullptr;
    return Py_BuildValue("(NO)", value, how == PYGEN_RETURN ? Py_True : Py_False);
}

PyMethodDef interpreter_limits_functions[] = {
    {"send", reinterpret_cast<PyCFunction>(py_send), METH_FASTCALL,
     "send(iterator, value): (the value that the iterator yields or returns, whether it returned)."},
    {"raise_at", reinterpret_cast<PyCFunction>(py_raise_at), METH_FASTCALL,
     R"(raise_at(error, offset): raises the exception unchanged, with the traceback at this offset of the caller's code.)"},
    {"set_thread_recursion_limit", py_set_thread_recursion_limit, METH_O,
     "set_thread_recursion_limit(limit): sets the recursion limit of this thread only; returns the previous "
     "limit."},
    {"call_within", reinterpret_cast<PyCFunction>(py_call_within), METH_FASTCALL,
     "call_within(levels, function, *args): the call, limited to so many more levels of recursion."},
    {"postpone_collections", py_postpone_collections, METH_O,
     R"(postpone_collections(on): postpones automatic garbage collections, or no longer does; returns the previous setting.)"},
    {}};

}  // namespace

int init_interpreter_limits(PyObject* module) {
    return PyModule_AddFunctions(module, interpreter_limits_functions);
}

}  // namespace smelt::calls
