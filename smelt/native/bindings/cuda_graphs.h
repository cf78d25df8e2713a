// CUDA graphs that a Python function captures (smelt/runtime/cuda_graphs.py).
#pragma once
#include <Python.h>

#include "plan/cuda_graphs.h"

namespace smelt::plan {

// A capture by `function(inputs, copied)`, which returns (replay, static tensors, results), or None. It and its replays need
// the GIL, and throw python_error.
CaptureRun capture_with(PyObject* function);

}  // namespace smelt::plan
