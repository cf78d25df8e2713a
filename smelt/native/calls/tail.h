// What a compiled frame returns to have another function called in its place, so that the stack does not grow.
#pragma once
#include "cpython.h"

namespace smelt::calls {

struct Tail {
    PyObject_HEAD PyObject* target;  // both owned, never null
    PyObject* arguments;             // a tuple
};
extern PyTypeObject tail_type;

}  // namespace smelt::calls
