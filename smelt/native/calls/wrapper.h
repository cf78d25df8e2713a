// The wrapper of a function: the object that `wrap` makes.
#pragma once
#include "calls/entries.h"

namespace smelt::calls {

struct Wrapped {
    PyObject_HEAD vectorcallfunc vectorcall;
    PyObject* fn;             // a function; never cleared, since it may still be called
    PyObject* original;       // the user's function that `fn` is a copy of, or null; never cleared
    PyObject* original_code;  // its code when it was copied
    PyObject* callback;
    PyObject* traced;  // what runs in place of `fn` where another tracer looks, or null
    PyObject* dict;
    PyObject* weakrefs;
    EntryTable table;  // entries of this wrapper alone
};
extern PyTypeObject wrapped_type;

// What the user's function, `original`, is now: as it was when it was copied, with other defaults, or with other code.
enum class Change { None, Defaults, Code };

inline Change change_of(const Wrapped* self) {
    auto* from = reinterpret_cast<PyFunctionObject*>(self->original);
    auto* own = reinterpret_cast<PyFunctionObject*>(self->fn);
    if (!from) return Change::None;
    if (from->func_code != self->original_code) return Change::Code;
    bool same = from->func_defaults == own->func_defaults && from->func_kwdefaults == own->func_kwdefaults;
    return same ? Change::None : Change::Defaults;
}

// Gives the copy the defaults that the user's function has now; false: a Python error.
bool take_over_defaults(Wrapped* self);

// A call of a wrapper, as vectorcall has it (call.cpp).
PyObject* call_wrapper(PyObject* callable, PyObject* const* args, size_t nargsf, PyObject* names);

}  // namespace smelt::calls
