// One pass over the tree, and the references that the tree owns.
//
// What always holds: values are borrowed from the objects they were read from, which the slots or the tree keep alive;
// the few new references are kept until the pass ends.
#pragma once
#include "cpython.h"

#include <vector>

namespace smelt::guards {

// One pass over the tree.
struct Pass {
    PyObject* const* slots;
    Py_ssize_t slot_count;
    PyObject** values;  // by node
    std::vector<PyObject*> kept{};

    Pass(PyObject* const* slots, Py_ssize_t slot_count, PyObject** values)
        : slots(slots), slot_count(slot_count), values(values) {}
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;
    ~Pass() {
        for (PyObject* x : kept) Py_DECREF(x);
    }

    PyObject* keep(PyObject* fresh) {
        if (fresh)
            kept.push_back(fresh);
        else
            PyErr_Clear();
        return fresh;
    }
};

// References that the tree owns; accessors and checks borrow them.
using Held = std::vector<PyObject*>;

inline PyObject* hold(Held& held, PyObject* x) {
    held.push_back(Py_NewRef(x));
    return x;
}

inline PyObject* hold_name(Held& held, PyObject* x) {  // null with a Python error
    if (!PyUnicode_CheckExact(x)) {
        PyErr_Format(PyExc_TypeError, "GuardTree: expected a name, not %R", x);
        return nullptr;
    }
    Py_INCREF(x);
    PyUnicode_InternInPlace(&x);
    if (PyObject_Hash(x) == -1) return nullptr;
    held.push_back(x);
    return x;
}

}  // namespace smelt::guards
