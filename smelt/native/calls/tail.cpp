#include "calls/tail.h"

#include "calls/state.h"
#include "module.h"

#include <utility>

namespace smelt::calls {

PyTypeObject tail_type = {PyVarObject_HEAD_INIT(nullptr, 0) "smelt._native.Tail", sizeof(Tail)};

namespace {

int traverse_tail(PyObject* self, visitproc visit, void* arg) {
    auto* tail = reinterpret_cast<Tail*>(self);
    Py_VISIT(tail->target);
    Py_VISIT(tail->arguments);
    return 0;
}

void dealloc_tail(PyObject* self) {
    auto* tail = reinterpret_cast<Tail*>(self);
    PyObject_GC_UnTrack(self);
    Py_DECREF(tail->target);
    Py_DECREF(tail->arguments);
    PyObject_GC_Del(self);
}

int ready_tail_type() {
    tail_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION;
    tail_type.tp_traverse = traverse_tail;
    tail_type.tp_dealloc = dealloc_tail;
    return PyType_Ready(&tail_type);
}

PyObject* py_tail(PyObject*, PyObject* const* args, Py_ssize_t count) {
    if (count < 1 || !PyCallable_Check(args[0]))
        return PyErr_Format(PyExc_TypeError, "tail: the first argument must be callable");
    PyObject* arguments = PyTuple_New(count - 1);
    auto* tail = arguments ? PyObject_GC_New(Tail, &tail_type) : nullptr;
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

// What the resume function drops must not live on in the caller's arguments.
PyObject* py_release_arguments(PyObject*, PyObject*) {
    PyObject* arguments = std::exchange(current.arguments, nullptr);
    for (Py_ssize_t i = 0; arguments && i < PyTuple_GET_SIZE(arguments); i++) {
        PyObject* value = PyTuple_GET_ITEM(arguments, i);
        PyTuple_SET_ITEM(arguments, i, Py_NewRef(Py_None));
        Py_DECREF(value);
    }
    Py_RETURN_NONE;
}

PyMethodDef tail_functions[] = {
    {"tail", reinterpret_cast<PyCFunction>(py_tail), METH_FASTCALL,
     "tail(target, *args): what a compiled frame returns so that target(*args) is called in its place."},
    {"release_arguments", py_release_arguments, METH_NOARGS,
     "release_arguments(): what a resume function that runs eagerly begins with: its variables alone hold "
     "its arguments then."},
    {}};

}  // namespace

int init_tail(PyObject* module) {
    return ready_tail_type() < 0 ? -1 : PyModule_AddFunctions(module, tail_functions);
}

}  // namespace smelt::calls
