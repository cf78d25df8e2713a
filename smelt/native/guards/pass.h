// One pass over the tree, and the references that the tree owns.
//
// What always holds: values are borrowed from the objects they were read from, which the slots or the tree keep alive;
// the few new references are kept until the pass ends. Where other threads may run in between, all values are kept.
#pragma once
#include "cpython.h"

#include <algorithm>
#include <vector>

namespace smelt::guards {

// One pass over the tree.
struct Pass {
    PyObject* const* slots;
    Py_ssize_t slot_count;
    PyObject** values;  // by node
    int64_t* words;     // sizes of tensors: where a check of a tensor writes them, and others read
    std::vector<PyObject*> kept{};

    Pass(PyObject* const* slots, Py_ssize_t slot_count, PyObject** values, int64_t* words)
        : slots(slots), slot_count(slot_count), values(values), words(words) {}
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

// References that the tree owns; accessors and checks borrow them. Objects that each call brings which the guards accept are
// not owned: where one is gone, none of what was borrowed may be looked at, and no call matches.
struct Held {
    std::vector<PyObject*> owned{};
    std::vector<PyObject*> brought{};     // addresses
    std::vector<PyObject*> references{};  // weak ones to what was brought; owned

    PyObject* take(PyObject* x) {  // takes over a reference
        if (std::find(brought.begin(), brought.end(), x) == brought.end())
            owned.push_back(x);
        else
            Py_DECREF(x);
        return x;
    }
    bool bring(PyObject* x) {  // false with a Python error
        PyObject* reference = PyWeakref_NewRef(x, nullptr);
        if (!reference) return false;
        brought.push_back(x);
        references.push_back(reference);
        return true;
    }
    bool all_live() const {
        return std::all_of(references.begin(), references.end(),
                           [](PyObject* reference) { return referent(reference); });
    }
    void keep_brought(Pass& pass) const {
        for (PyObject* reference : references) pass.keep(Py_NewRef(referent(reference)));
    }
};

inline PyObject* hold(Held& held, PyObject* x) {
    return held.take(Py_NewRef(x));
}

inline PyObject* hold_name(Held& held, PyObject* x) {  // null with a Python error
    if (!PyUnicode_CheckExact(x)) {
        PyErr_Format(PyExc_TypeError, "GuardTree: expected a name, not %R", x);
        return nullptr;
    }
    Py_INCREF(x);
    PyUnicode_InternInPlace(&x);
    if (PyObject_Hash(x) == -1) return nullptr;
    return held.take(x);
}

}  // namespace smelt::guards
