// One pass over the guard tree, and the references that the tree owns.
//
// Invariant: values are borrowed from the objects they were read from, which the slots or the tree keep alive; the
// few new references are released at the end of the pass. If other threads may run meanwhile, the pass owns all
// values.
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
    int64_t* words;     // sizes of tensors: written by the check of a tensor, read by others
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

// References that the tree owns; accessors and checks borrow them. Objects that each call provides and the guards
// accept have weak references: after one is destroyed, nothing that was borrowed from it may be used, and no call
// matches.
struct OwnedReferences {
    std::vector<PyObject*> owned{};
    std::vector<PyObject*> weak{};        // addresses of objects that are not owned
    std::vector<PyObject*> references{};  // weak references to them; owned

    PyObject* take(PyObject* x) {  // steals a reference
        if (std::find(weak.begin(), weak.end(), x) == weak.end())
            owned.push_back(x);
        else
            Py_DECREF(x);
        return x;
    }
    bool hold_weakly(PyObject* x) {  // false with a Python error
        PyObject* reference = PyWeakref_NewRef(x, nullptr);
        if (!reference) return false;
        weak.push_back(x);
        references.push_back(reference);
        return true;
    }
    bool all_live() const {
        return std::all_of(references.begin(), references.end(),
                           [](PyObject* reference) { return referent(reference); });
    }
    void keep_weak(Pass& pass) const {
        for (PyObject* reference : references) pass.keep(Py_NewRef(referent(reference)));
    }
};

inline PyObject* hold(OwnedReferences& held, PyObject* x) {
    return held.take(Py_NewRef(x));
}

inline PyObject* hold_name(OwnedReferences& held, PyObject* x) {  // null with a Python error
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
