// Python errors as C++ exceptions. A backward call raises them unchanged, whichever thread raised them.
#pragma once
#include <Python.h>

#include <string>

#include "torch_python.h"

namespace smelt::autograd {

// Throws the pending Python error.
[[noreturn]] inline void raise() {
    python_error error;
    error.persist();
    throw error;
}

[[noreturn]] inline void raise(PyObject* type, const std::string& message) {
    PyErr_SetString(type, message.c_str());
    raise();
}

// Returns its argument, the result of a Python function; throws the pending error if it is null.
inline PyObject* checked(PyObject* object) {
    if (!object) raise();
    return object;
}

}  // namespace smelt::autograd
