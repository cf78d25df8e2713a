// Each part of smelt._native adds its types and functions to the module; -1 with a Python error on failure.
#pragma once
#include <Python.h>

namespace smelt {

namespace calls {
int init_entries(PyObject* module);
int init_wrapper(PyObject* module);
int init_tail(PyObject* module);
int init_tracers(PyObject* module);
int init_call(PyObject* module);
int init_window(PyObject* module);
int init_interpreter(PyObject* module);
int init_frames(PyObject* module);
}  // namespace calls

namespace guards {
int init_tree(PyObject* module);
int init_global_state(PyObject* module);
}  // namespace guards

namespace plan {
int init_type(PyObject* module);
int init_blocks(PyObject* module);
int init_by_sizes(PyObject* module);
int init_place(PyObject* module);
int init_template(PyObject* module);
}  // namespace plan

namespace devices {
int init_kernels(PyObject* module);
}  // namespace devices

int init_autograd(PyObject* module);
int init_shapes(PyObject* module);
int init_fresh(PyObject* module);
int init_sets(PyObject* module);
int init_itertools(PyObject* module);
int init_probes(PyObject* module);
}  // namespace smelt
