// Python errors as C++ exceptions, which come out of a backward call as they are, whichever thread raised them.
#pragma once
#include <Python.h>

#include <string>

#include "torch_python.h"

namespace smelt::autograd {

// Throws the Python error that is set.
[[noreturn]] inline void raise() {
    python_error error;
    error.persist();
    throw error;
}

[[noreturn]] inline void raise(PyObject* type, const std::string& message) {
    PyErr_SetString(type, message.c_str());
    raise();
}

// What a function of Python's returned; throws the error that is set if it is null.
inline PyObject* checked(PyObject* object) {
    if (!object) raise();
    return object;
}

}  // namespace smelt::autograd
