// Calls of a Differentiable.
#pragma once
#include <Python.h>

#include "differentiable/differentiable_spec.h"

namespace smelt::autograd {

// Runs the forward below autograd on a tuple of inputs and, where an input requires grad, makes nodes the history of
// the outputs. Returns a new tuple; throws python_error and what operators throw.
PyObject* call(const c10::intrusive_ptr<PythonSpec>& spec, PyObject* inputs);

}  // namespace smelt::autograd
