// The wrapper of a function, created by `wrap`.
#pragma once
#include "calls/entries.h"

namespace smelt::calls {

struct Wrapped {
    PyObject_HEAD vectorcallfunc vectorcall;
    PyObject* fn;             // a function; never cleared, since it may still be called
    PyObject* original;       // the user's function that `fn` copies, or null; never cleared
    PyObject* original_code;  // its code when it was copied
    PyObject* callback;
    PyObject* traced;  // runs instead of `fn` under another tracer, or null
    PyObject* dict;
    PyObject* weakrefs;
    EntryTable table;                  // entries of this wrapper only
    char compiled_under_line_tracers;  // whether debuggers and coverage tools do not make calls eager
};
extern PyTypeObject wrapped_type;

// What changed in `original`, the user's function, since it was copied: nothing, its defaults, or its code.
enum class Change { None, Defaults, Code };

inline Change change_of(const Wrapped* self) {
    auto* from = reinterpret_cast<PyFunctionObject*>(self->original);
    auto* own = reinterpret_cast<PyFunctionObject*>(self->fn);
    if (!from) return Change::None;
    if (from->func_code != self->original_code) return Change::Code;
    bool same = from->func_defaults == own->func_defaults && from->func_kwdefaults == own->func_kwdefaults;
    return same ? Change::None : Change::Defaults;
}

// Copies the current defaults of the user's function to `fn`; false with a Python error.
bool take_over_defaults(Wrapped* self);

// A call of a wrapper by the vectorcall protocol (dispatch.cpp).
PyObject* call_wrapper(PyObject* callable, PyObject* const* args, size_t nargsf, PyObject* names);

}  // namespace smelt::calls
