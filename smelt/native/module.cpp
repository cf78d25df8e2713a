// smelt._native: calls and their compiled entries, the guard tree, the plan executor, the autograd node, operators.
#include "module.h"

namespace smelt {
namespace {

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "smelt._native", nullptr, -1, nullptr, nullptr, nullptr, nullptr, nullptr};

constexpr int (*kInitializers[])(PyObject* module) = {
    calls::init_entries,     calls::init_wrapper, calls::init_tail,
    calls::init_tracers,     calls::init_call,    calls::init_window,
    calls::init_interpreter, guards::init_tree,   guards::init_global_state,
    plan::init_type,         init_autograd,       init_shapes,
    plan::init_blocks,       calls::init_frames,  init_sets,
    init_itertools,          init_probes,         devices::init_kernels,
    plan::init_by_sizes,     init_fresh,          plan::init_place,
    plan::init_template,
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
