// A tail call: a compiled frame returns it to have another function called instead, so that the stack does not grow.
#pragma once
#include "cpython.h"

namespace smelt::calls {

struct TailCall {
    PyObject_HEAD PyObject* target;  // both owned, never null
    PyObject* arguments;             // a tuple
};
extern PyTypeObject tail_call_type;

}  // namespace smelt::calls
