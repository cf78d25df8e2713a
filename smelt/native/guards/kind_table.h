// Lookup in the tables of accessors and iterator parts by the name in the spec of a tree.
#pragma once
#include "cpython.h"

namespace smelt::guards {

// The row of a table by its name; null with a Python error.
template <class Row, size_t size>
const Row* find_row(const Row (&table)[size], PyObject* name, const char* what) {
    for (const Row& row : table)
        if (PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, row.name) == 0) return &row;
    PyErr_Format(PyExc_ValueError, "GuardTree: unknown %s %R", what, name);
    return nullptr;
}

}  // namespace smelt::guards
