// Functions that add types and functions to the module smelt._native; -1 with a Python error on failure.
#pragma once
#include <Python.h>

namespace smelt {

namespace calls {
int init_entries(PyObject* module);
int init_wrapper(PyObject* module);
int init_tail_call(PyObject* module);
int init_active_tracers(PyObject* module);
int init_dispatch(PyObject* module);
int init_frame_hook(PyObject* module);
int init_interpreter_limits(PyObject* module);
int init_traceback_frames(PyObject* module);
}  // namespace calls

namespace guards {
int init_guard_tree(PyObject* module);
int init_global_state(PyObject* module);
}  // namespace guards

namespace plan {
int init_plan(PyObject* module);
int init_size_dispatch(PyObject* module);
int init_plan_memory(PyObject* module);
int init_arena_budget(PyObject* module);
int init_plan_template(PyObject* module);
}  // namespace plan

namespace exported {
int init_exported_program(PyObject* module);
}  // namespace exported

namespace devices {
int init_device_kernel(PyObject* module);
}  // namespace devices

int init_values(PyObject* module);
int init_differentiable(PyObject* module);
int init_shape_functions(PyObject* module);
int init_meta_tensors(PyObject* module);
int init_sets(PyObject* module);
int init_itertools(PyObject* module);
int init_layout_probes(PyObject* module);
}  // namespace smelt
