#include "calls/tail_call.h"

#include "calls/thread_state.h"
#include "module.h"

#include <utility>

namespace smelt::calls {

PyTypeObject tail_call_type = {PyVarObject_HEAD_INIT(nullptr, 0) "smelt._native.TailCall", sizeof(TailCall)};

namespace {

int traverse_tail_call(PyObject* self, visitproc visit, void* arg) {
    auto* tail = reinterpret_cast<TailCall*>(self);
    Py_VISIT(tail->target);
    Py_VISIT(tail->arguments);
    return 0;
}

void dealloc_tail_call(PyObject* self) {
    auto* tail = reinterpret_cast<TailCall*>(self);
    PyObject_GC_UnTrack(self);
    Py_DECREF(tail->target);
    Py_DECREF(tail->arguments);
    PyObject_GC_Del(self);
}

int ready_tail_call_type() {
    tail_call_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION;
    tail_call_type.tp_traverse = traverse_tail_call;
    tail_call_type.tp_dealloc = dealloc_tail_call;
    return PyType_Ready(&tail_call_type);
}

PyObject* py_tail_call(PyObject*, PyObject* const* args, Py_ssize_t count) {
    if (count < 1 || !PyCallable_Check(args[0]))
        return PyErr_Format(PyExc_TypeError, "tail_call: the first argument must be callable");
    PyObject* arguments = PyTuple_New(count - 1);
    auto* tail = arguments ? PyObject_GC_New(TailCall, &tail_call_type) : nullptr;
    if (!tail) {
        Py_XDECREF(arguments);
        return nullptr;
    }
    for (Py_ssize_t i = 1; i < count; i++) PyTuple_SET_ITEM(arguments, i - 1, Py_NewRef(args[i]));
    tail->target = Py_NewRef(args[0]);
    tail->arguments = arguments;
    PyObject_GC_Track(tail);
    return object(tail);
}

// An object that the resume function drops must not stay alive in the caller's arguments.
PyObject* py_release_arguments(PyObject*, PyObject*) {
    PyObject* arguments = std::exchange(current.arguments, nullptr);
    for (Py_ssize_t i = 0; arguments && i < PyTuple_GET_SIZE(arguments); i++) {
        PyObject* value = PyTuple_GET_ITEM(arguments, i);
        PyTuple_SET_ITEM(arguments, i, Py_NewRef(Py_None));
        Py_DECREF(value);
    }
    Py_RETURN_NONE;
}

PyMethodDef tail_call_functions[] = {
    {"tail_call", reinterpret_cast<PyCFunction>(py_tail_call), METH_FASTCALL,
     "tail_call(target, *args): returned by a compiled frame to have target(*args) called instead."},
    {"release_arguments", py_release_arguments, METH_NOARGS,
     "release_arguments(): called first by a resume function that runs eagerly; then only its variables hold "
     "its arguments."},
    {}};

}  // namespace

int init_tail_call(PyObject* module) {
    return ready_tail_call_type() < 0 ? -1 : PyModule_AddFunctions(module, tail_call_functions);
}

}  // namespace smelt::calls
