// The tracers of torch stand in the dispatch keys of the thread, that of torch.fx in a global of its module.
#include "calls/tracers.h"

#include "cpython.h"
#include "module.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace smelt::calls {
namespace {

constexpr c10::DispatchKeySet kTracers({
    c10::DispatchKey::Tracer,            // torch.jit.trace
    c10::DispatchKey::Python,            // dispatch modes
    c10::DispatchKey::PreDispatch,       // dispatch modes above autograd: torch.export
    c10::DispatchKey::PythonDispatcher,  // make_fx and torch.export, where operators are taken apart
    c10::DispatchKey::Functionalize,
    c10::DispatchKey::FuncTorchDynamicLayerFrontMode,  // torch.vmap, torch.func
    c10::DispatchKey::FuncTorchDynamicLayerBackMode,
});

// The flag of torch.fx.symbolic_trace, read again only after a global of its module changed.
struct FxFlag {
    PyObject *globals = nullptr, *name = nullptr;  // owned for good
    uint64_t version = 0;
    bool is_set = false;

    bool read() {
        if (dict_version(globals) == version) return is_set;
        is_set = PyDict_GetItem(globals, name) == Py_True;
        version = dict_version(globals);
        return is_set;
    }
};
FxFlag fx_flag;

PyObject* py_is_traced(PyObject*, PyObject*) {
    return PyBool_FromLong(is_traced());
}

PyMethodDef functions[] = {
    {"is_traced", py_is_traced, METH_NOARGS,
     "is_traced(): whether another tracer (torch.jit.trace, torch.fx, make_fx, torch.func, any "
     "dispatch mode) looks at the calls of this thread, so that compiled functions run as they are."},
    {}};

}  // namespace

bool is_traced() {
    return c10::impl::tls_local_dispatch_key_set().included_.has_any(kTracers) || fx_flag.read();
}

int init_tracers(PyObject* module) {
    PyObject* fx = PyImport_ImportModule("torch.fx._symbolic_trace");
    if (!fx) return -1;
    fx_flag.globals = Py_XNewRef(PyModule_GetDict(fx));
    Py_DECREF(fx);
    fx_flag.name = PyUnicode_InternFromString("_is_fx_tracing_flag");
    return fx_flag.name ? PyModule_AddFunctions(module, functions) : -1;
}

}  // namespace smelt::calls
