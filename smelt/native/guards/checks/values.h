// Comparison of constants.
#pragma once
#include "cpython.h"

namespace smelt::guards {

// Whether type and value are equal, for constants without user code. Objects of classes written in Python are
// compared by identity.
bool same_leaf(PyObject* x, PyObject* value);

}  // namespace smelt::guards
