// smelt._native: the frame hook, the guard tree, the plan executor, the autograd node and shape functions.
#include "module.h"

namespace smelt {
namespace {
PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT, "smelt._native", nullptr, -1, nullptr, nullptr, nullptr, nullptr, nullptr};
}
}  // namespace smelt

PyMODINIT_FUNC PyInit__native(void) {
    PyObject* m = PyModule_Create(&smelt::module_def);
    if (!m) return nullptr;
    if (smelt::init_hook(m) < 0 || smelt::init_guards(m) < 0 || smelt::init_plan(m) < 0 ||
        smelt::init_autograd(m) < 0 || smelt::init_shapes(m) < 0 || smelt::init_blocks(m) < 0) {
        Py_DECREF(m);
        return nullptr;
    }
    return m;
}
