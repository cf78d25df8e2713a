// Reads C iterators without advancing them: the items that they will yield, and the iterators inside of others.
//
// Runs no user code: it supports iterators over lists, tuples, dictionaries, ranges and strings, and enumerate and
// zip. It reads nothing from other objects.
#pragma once
#include "cpython.h"

namespace smelt {

// The item that `iterator` yields after `count` others: a new reference, or null with or without a Python error.
PyObject* item_ahead(PyObject* iterator, Py_ssize_t count);

// Reads a field of an iterator: a new reference, or null with or without a Python error.
using IteratorPart = PyObject* (*)(PyObject* iterator);
IteratorPart find_iterator_part(PyObject* name);  // null with a Python error

// Whether a supported iterator has a pointer to `inside` at the expected offset: what it iterates over, for enumerate
// the inner iterator, for zip the tuple of iterators. Does not dereference that pointer.
bool keeps(PyObject* iterator, PyObject* inside);

// The fields of an `itertools` iterator from CPython 3.14 on: a tuple, or None if its layout is not known. Null with
// a Python error.
PyObject* parts_of_itertools(PyObject* iterator);

bool init_iterators();  // false with a Python error

}  // namespace smelt
