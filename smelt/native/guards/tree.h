// The guard tree as the frame hook uses it.
#pragma once
#include <Python.h>

namespace smelt::guards {

bool is_guard_tree(PyObject* object);

// The tuple of collected tensors (a new reference) if every guard holds for these argument slots; null,
// without a Python error, if not. Runs no user code.
PyObject* check_guard_tree(PyObject* tree, PyObject* const* slots, Py_ssize_t count);

}  // namespace smelt::guards
