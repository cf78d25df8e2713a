// torch's tracers show in the dispatch keys of the thread, torch.fx's in a global of its module. The stance of
// torch.compiler.set_stance is a global of a module that torch imports late, or never.
#include "calls/active_tracers.h"

#include "calls/thread_state.h"
#include "cpython.h"
#include "dict_version.h"
#include "module.h"
#include "torch.h"

namespace smelt::calls {
namespace {

constexpr c10::DispatchKeySet kTracers({
    c10::DispatchKey::Tracer,            // torch.jit.trace
    c10::DispatchKey::Python,            // dispatch modes
    c10::DispatchKey::PreDispatch,       // dispatch modes above autograd: torch.export
    c10::DispatchKey::PythonDispatcher,  // make_fx and torch.export, which decompose operators
    c10::DispatchKey::Functionalize,
    c10::DispatchKey::FuncTorchDynamicLayerFrontMode,  // torch.vmap, torch.func
    c10::DispatchKey::FuncTorchDynamicLayerBackMode,
});

// What this thread saw last.
struct Seen {
    uint64_t thread = 0;       // the interpreter's identifier of the thread, which is never reused
    PyObject* dict = nullptr;  // the thread's dictionary; the thread state owns it
    DictVersion without_flag;  // the dictionary's version when the flag was not set
};
__attribute__((tls_model("initial-exec"))) constinit thread_local Seen seen;

// The flag of torch.fx.symbolic_trace: before torch 2.13 a global of its module, later an attribute of a
// threading.local, which has one dictionary per thread.
class FxFlag {
  public:
    bool find(PyObject* module) {
        if ((local_ = PyObject_GetAttrString(module, "_is_fx_tracing_tls"))) {
            name_ = PyUnicode_InternFromString("flag");
        } else {
            PyErr_Clear();
            globals_ = Py_NewRef(PyModule_GetDict(module));
            name_ = PyUnicode_InternFromString("_is_fx_tracing_flag");
            if (name_ && !PyDict_Contains(globals_, name_)) {
                PyErr_SetString(PyExc_AttributeError,
                                "torch.fx._symbolic_trace has no flag that smelt knows of");
                return false;
            }
        }
        return name_ && (hash_ = PyObject_Hash(name_)) != -1;
    }

    bool is_set() const {
        PyObject* dict = local_ ? of_thread() : globals_;
        if (!dict) return false;
        if (seen.without_flag.holds(dict)) return false;
        if (_PyDict_GetItem_KnownHash(dict, name_, hash_) == Py_True) return true;
        seen.without_flag.set(dict);
        return false;
    }

  private:
    PyObject* of_thread() const {
        uint64_t now = PyThreadState_GetID(PyThreadState_Get());
        if (seen.thread == now) return seen.dict;
        PyObject* found = PyObject_GetAttrString(local_, "__dict__");
        if (!found) {
            PyErr_Clear();
            return nullptr;
        }
        Py_DECREF(found);
        seen.thread = now;
        return seen.dict = found;
    }

    PyObject *local_ = nullptr, *globals_ = nullptr, *name_ = nullptr;  // owned, never freed
    Py_hash_t hash_ = 0;                                                // of the name
};
FxFlag fx_flag;

// What torch.compiler.set_stance has set for all threads.
class Stance {
  public:
    bool init() {
        modules_ = Py_NewRef(PyImport_GetModuleDict());
        module_name_ = PyUnicode_InternFromString("torch._dynamo.eval_frame");
        return module_name_ && (name_ = PyUnicode_InternFromString("_stance"));
    }

    // Whether it forces eager calls, or a backend.
    bool forces() {
        if (!globals_ && !find_module()) return false;
        if (another_.holds(globals_)) return false;
        PyObject* backend = this->backend();
        bool forced = backend || text_is("force_eager");
        Py_XDECREF(backend);
        if (!forced) another_.set(globals_);
        return forced;
    }

    // The backend that it forces (owned), or null.
    PyObject* backend() {
        PyObject* backend = globals_ && text_is("default") ? attribute("backend") : nullptr;
        if (backend == Py_None) Py_CLEAR(backend);
        return backend;
    }

  private:
    bool find_module() {
        if (absent_.holds(modules_)) return false;
        PyObject* module = PyDict_GetItemWithError(modules_, module_name_);
        PyErr_Clear();
        if (module && PyModule_Check(module))
            globals_ = Py_NewRef(PyModule_GetDict(module));
        else
            absent_.set(modules_);
        return globals_;
    }

    PyObject* attribute(const char* name) {
        PyObject* stance = PyDict_GetItemWithError(globals_, name_);
        PyObject* value = stance ? PyObject_GetAttrString(stance, name) : nullptr;
        PyErr_Clear();
        return value;
    }

    bool text_is(const char* expected) {
        PyObject* text = attribute("stance");
        bool equal = text && PyUnicode_Check(text) && !PyUnicode_CompareWithASCIIString(text, expected);
        Py_XDECREF(text);
        return equal;
    }

    PyObject *modules_ = nullptr, *globals_ = nullptr, *module_name_ = nullptr,
             *name_ = nullptr;  // never freed
    DictVersion absent_;        // of sys.modules without the module
    DictVersion another_;       // of the module's globals with another stance
};
Stance stance;

PyObject* py_is_traced(PyObject*, PyObject*) {
    return PyBool_FromLong(is_traced());
}

PyObject* py_lines_are_traced(PyObject*, PyObject*) {
    return PyBool_FromLong(lines_are_traced());
}

PyMethodDef active_tracers_functions[] = {
    {"lines_are_traced", py_lines_are_traced, METH_NOARGS,
     "lines_are_traced(): whether a debugger or coverage tool follows the lines of this thread."},
    {"is_traced", py_is_traced, METH_NOARGS,
     "is_traced(): whether another tracer (torch.jit.trace, torch.fx, make_fx, torch.func, any dispatch "
     "mode, a node_creation_hook) observes the calls of this thread, or the stance of torch.compiler forces "
     "eager calls or a backend."},
    {}};

}  // namespace

static bool is_observed() {
    return c10::impl::tls_local_dispatch_key_set().included_.has_any(kTracers) || fx_flag.is_set() ||
           hooks_see_nodes();
}

bool is_traced() {
    return is_observed() || stance.forces();
}

bool lines_are_traced() {
    PyThreadState* thread = PyThreadState_Get();
    return UNLIKELY(thread->c_tracefunc != nullptr || lines_are_monitored(thread));
}

PyObject* forced_backend() {
    return is_observed() ? nullptr : stance.backend();
}

int init_active_tracers(PyObject* module) {
    PyObject* fx = PyImport_ImportModule("torch.fx._symbolic_trace");
    if (!fx) return -1;
    bool found = fx_flag.find(fx);
    Py_DECREF(fx);
    return found && stance.init() ? PyModule_AddFunctions(module, active_tracers_functions) : -1;
}

}  // namespace smelt::calls
