// The wrapper of a function: the object that `wrap` makes.
#pragma once
#include "calls/entries.h"

namespace smelt::calls {

struct Wrapped {
    PyObject_HEAD vectorcallfunc vectorcall;
    PyObject* fn;  // a function; never cleared, since it may still be called
    PyObject* callback;
    PyObject* traced;  // what runs in place of `fn` where another tracer looks, or null
    PyObject* dict;
    PyObject* weakrefs;
    EntryTable table;  // entries of this wrapper alone
};
extern PyTypeObject wrapped_type;

// A call of a wrapper, as vectorcall has it (call.cpp).
PyObject* call_wrapper(PyObject* callable, PyObject* const* args, size_t nargsf, PyObject* names);

}  // namespace smelt::calls
