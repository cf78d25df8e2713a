// Iterators of C, read without advancing them: what they will give, and the iterators inside of others.
//
// Nothing here runs user code: the kinds are those that hand out what a list, a tuple, a range or a text holds, and
// enumerate and zip. Of other objects there is nothing to be read.
#pragma once
#include "cpython.h"

namespace smelt {

// The item that `iterator` gives after `count` others: a new reference, or null with or without a Python error.
PyObject* item_ahead(PyObject* iterator, Py_ssize_t count);

// A part of an iterator: a new reference, or null with or without a Python error.
using IteratorPart = PyObject* (*)(PyObject* iterator);
IteratorPart find_iterator_part(PyObject* name);  // null with a Python error

// Whether an iterator of one of the kinds has a pointer to `inside` where that is looked for: what it walks over, of enumerate the
// iterator, of zip the tuple of them. Nothing is read through the pointer that is there.
bool keeps(PyObject* iterator, PyObject* inside);

// What is inside of an iterator of `itertools` from CPython 3.14 on, field by field: a tuple, or None where that is not known. Null
// with a Python error.
PyObject* parts_of_itertools(PyObject* iterator);

bool init_iterators();  // false with a Python error

}  // namespace smelt
