// What smelt asks of the interpreter while it compiles, without a setting that other threads could see.
//
// Python's own functions for both set them for the whole process: `sys.setrecursionlimit`, `gc.disable`.
#include "cpython.h"

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

// Collections are due when the count of new objects passes a threshold; a count far below zero takes its time.
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
    Frame* frame = current_frame(PyThreadState_Get());  // the caller's: functions of C have none
    if (offset < 0 || !PyExceptionInstance_Check(args[0]) || offset >= code_size(frame_code(frame))) {
        PyErr_Clear();
        return PyErr_Format(PyExc_ValueError, "raise_at(error, offset): no such place in the caller's code");
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

PyMethodDef interpreter_functions[] = {
    {"send", reinterpret_cast<PyCFunction>(py_send), METH_FASTCALL,
     "send(iterator, value): what an iterator gives for that, and whether it has ended with that."},
    {"raise_at", reinterpret_cast<PyCFunction>(py_raise_at), METH_FASTCALL,
     R"(raise_at(error, offset): raises the exception as it is, as if the caller stood at this offset of its code.)"},
    {"set_thread_recursion_limit", py_set_thread_recursion_limit, METH_O,
     "set_thread_recursion_limit(limit): how deep this thread alone may call; gives what was so before."},
    {"call_within", reinterpret_cast<PyCFunction>(py_call_within), METH_FASTCALL,
     "call_within(levels, function, *args): the call, which may not go deeper than so many levels."},
    {"postpone_collections", py_postpone_collections, METH_O,
     R"(postpone_collections(on): whether the collector waits, until it is called for; gives what was so before.)"},
    {}};

}  // namespace

int init_interpreter(PyObject* module) {
    return PyModule_AddFunctions(module, interpreter_functions);
}

}  // namespace smelt::calls
