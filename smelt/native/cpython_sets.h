// The tables of sets. Where their elements lie, and so their order, depends on all that was added and removed before.
#pragma once
#include "cpython.h"

namespace smelt {

// What makes two sets with the same elements in the same order go on alike: (the table's size less one, where `pop` begins
// to look, the places in use, in order; -1 - place: its element was removed). A new reference.
PyObject* set_table(PyObject* set);

// Whether `set_table(set)` equals `table`, without making one.
bool has_table(PyObject* set, PyObject* table);

// Fills a set that was never filled with what `from` holds, in the same places. False: no memory, the error is set.
bool copy_set(PyObject* empty, PyObject* from);

// The word of memory that says how many elements a set has.
inline const void* set_size_word(PyObject* set) {
    return &reinterpret_cast<PySetObject*>(set)->used;
}

}  // namespace smelt
