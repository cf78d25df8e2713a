// The hash tables of sets. The slots of their elements, and so their order, depend on all previous insertions and
// removals.
#pragma once
#include "cpython.h"

namespace smelt {

// The state that makes equal sets with equal order behave the same: (table size - 1, the index at which `pop` starts,
// the used slots in order; -1 - slot for a removed element). A new reference.
PyObject* set_table(PyObject* set);

// Whether `set_table(set)` equals `table`, without creating a tuple.
bool has_table(PyObject* set, PyObject* table);

// Fills a set that was never filled with the elements of `from`, in the same slots. Returns false with an error if
// there is no memory.
bool copy_set(PyObject* empty, PyObject* from);

// The memory word with the number of a set's elements.
inline const void* set_size_word(PyObject* set) {
    return &reinterpret_cast<PySetObject*>(set)->used;
}

}  // namespace smelt
