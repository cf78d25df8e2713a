// The interface of the guard tree for calls.
#pragma once
#include "guards/collected_inputs.h"

namespace smelt::guards {

bool is_guard_tree(PyObject* object);

// Whether every guard holds for these argument slots; if so, fills `collected`, which must be empty. Leaves no Python
// error. Runs no user code.
bool check_guard_tree(PyObject* tree, PyObject* const* slots, Py_ssize_t count, Collected& collected);

}  // namespace smelt::guards
