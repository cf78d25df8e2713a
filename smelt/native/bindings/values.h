// Python objects as values, and back.
#pragma once
#include <Python.h>

#include "plan/program_reader.h"
#include "values/value.h"

namespace smelt {

// None, numbers, texts, bytes, tuples, lists, dicts, and torch's dtypes, layouts, memory formats and devices; another object,
// such as a generator, becomes the boxed value that torch infers. Throws what torch throws for objects that it does not know.
values::Value value_of(PyObject* object);

// `kernels`: a tuple of addresses and DeviceKernels. Throws Python errors for others.
plan::Surroundings surroundings_of(PyObject* constants, PyObject* kernels);

}  // namespace smelt
