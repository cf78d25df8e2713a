// The guard tree as calls use it.
#pragma once
#include "guards/collected.h"

namespace smelt::guards {

bool is_guard_tree(PyObject* object);

// Whether every guard holds for these argument slots; if so, `collected`, which is empty, gets the tensors. Leaves no Python
// error. Runs no user code.
bool check_guard_tree(PyObject* tree, PyObject* const* slots, Py_ssize_t count, Collected& collected);

}  // namespace smelt::guards
