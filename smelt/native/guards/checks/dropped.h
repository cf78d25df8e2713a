// Whether the program observes that an object drops what a place of it holds.
#pragma once
#include "cpython.h"

namespace smelt::guards {

// How an object holds a value: `name` is the attribute, slot or key, or the index of an item.
enum class Place { attribute, slot, key, item, cell };

// The place of this kind by its name in Python; false with a Python error.
bool to_place(PyObject* kind, Place* place);

// Whether nothing that `owner` has at a place runs code when it is destroyed: no `__del__`, and no callback of a
// weak reference but those of torch and smelt. True if there is nothing. Runs no user code.
bool drops_silently(PyObject* owner, Place place, PyObject* name);

}  // namespace smelt::guards
