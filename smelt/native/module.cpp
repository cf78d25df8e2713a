// smelt._native: calls and their compiled entries, guard trees, plans, autograd nodes, operators.
#include "module.h"

namespace smelt {
namespace {

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "smelt._native", nullptr, -1, nullptr, nullptr, nullptr, nullptr, nullptr};

constexpr int (*kInitializers[])(PyObject* module) = {
    calls::init_entries,
    calls::init_wrapper,
    calls::init_tail_call,
    calls::init_active_tracers,
    calls::init_dispatch,
    calls::init_frame_hook,
    calls::init_interpreter_limits,
    guards::init_guard_tree,
    guards::init_global_state,
    plan::init_plan,
    init_values,
    init_differentiable,
    init_shape_functions,
    calls::init_traceback_frames,
    init_sets,
    init_itertools,
    init_layout_probes,
    devices::init_device_kernel,
    plan::init_size_dispatch,
    init_meta_tensors,
    plan::init_plan_memory,
    plan::init_arena_budget,
    plan::init_plan_template,
    exported::init_exported_program,
};

}  // namespace
}  // namespace smelt

PyMODINIT_FUNC PyInit__native(void) {
    PyObject* module = PyModule_Create(&smelt::definition);
    if (!module) return nullptr;
    for (auto init : smelt::kInitializers) {
        if (init(module) >= 0) continue;
        Py_DECREF(module);
        return nullptr;
    }
    return module;
}
