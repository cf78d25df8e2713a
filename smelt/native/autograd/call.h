// A call of a Differentiable.
#pragma once
#include <Python.h>

#include "autograd/spec.h"

namespace smelt::autograd {

// Runs the forward beneath autograd on a tuple of inputs and, where a gradient is wanted, makes nodes the history of the
// outputs. A new tuple; throws python_error and what operators throw.
PyObject* call(const c10::intrusive_ptr<Spec>& spec, PyObject* inputs);

}  // namespace smelt::autograd
