// Each part of smelt._native adds its types and functions to the module; -1 with a Python error on failure.
#pragma once
#include <Python.h>

namespace smelt {
int init_hook(PyObject* module);
int init_guards(PyObject* module);
int init_plan(PyObject* module);
int init_autograd(PyObject* module);
int init_shapes(PyObject* module);
int init_blocks(PyObject* module);
}  // namespace smelt
