// The frame hook: `call_with_frame_hook(fn, args, kwargs, vm)` runs native code and diverts every Python function
// that it calls back to `vm`. It installs a PEP 523 hook only for that time, because the hook disables inlined
// Python-to-Python calls in all threads.
//
// Invariant, under the GIL: the hook is installed if and only if some thread is in Hooked mode.
#include "calls/thread_state.h"
#include "module.h"

#include "calls/argument_binding.h"
#include "calls/entries.h"
#include "calls/c_stack.h"

#include <memory>
#include <utility>

namespace smelt::calls {
namespace {

PyInterpreterState* interpreter;
_PyFrameEvalFunction previous_evaluator = _PyEval_EvalFrameDefault;
bool installed = false;
int hooked_threads = 0;  // threads in Hooked mode

PyObject* evaluate_hooked(PyThreadState* thread, Frame* frame, int throwing);

void install_or_remove_hook() {
    bool wanted = hooked_threads > 0;
    if (wanted == installed) return;
    _PyFrameEvalFunction now = _PyInterpreterState_GetEvalFrameFunc(interpreter);
    if (wanted) {
        if (now != evaluate_hooked) previous_evaluator = now;
        _PyInterpreterState_SetEvalFrameFunc(interpreter, evaluate_hooked);
    } else if (now == evaluate_hooked) {
        _PyInterpreterState_SetEvalFrameFunc(interpreter, previous_evaluator);
    } else {
        return;  // another hook was installed on top of this one and calls it: keep both
    }
    installed = wanted;
}

// Sets the mode of this thread for the lifetime of the object.
class Scope {
  public:
    explicit Scope(Mode mode, PyObject* vm = nullptr) : mode_(current.mode), vm_(current.vm) {
        current.vm = Py_XNewRef(vm);
        enter(mode);
    }
    ~Scope() {
        PyObject* inner = std::exchange(current.vm, vm_);
        enter(mode_);
        Py_XDECREF(inner);
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

  private:
    static void enter(Mode mode) {
        hooked_threads += (mode == Mode::Hooked) - (current.mode == Mode::Hooked);
        current.mode = mode;
        install_or_remove_hook();
    }

    Mode mode_;
    PyObject* vm_;
};

bool is_function_body(PyCodeObject* code) {  // not a module, a class body, or exec'd code
    constexpr int kFunction = CO_OPTIMIZED | CO_NEWLOCALS;
    return (code->co_flags & kFunction) == kFunction;
}

PyObject* evaluate_natively(PyThreadState* thread, Frame* frame, int throwing) {
    if (UNLIKELY(low_on_stack()) && is_on_thread(frame) && !throwing) {
        raise_depth();
        end_unrun_frame(thread, frame);
        return nullptr;
    }
    return evaluate_uncharged(previous_evaluator, thread, frame, throwing);
}

PyObject* natively;  // the VM's answer if the frame must run natively

// Returns null with a Python error, the result of the call, or `natively` (borrowed): then the frame is unchanged.
PyObject* divert_to_vm(PyThreadState* thread, Frame* frame, PyCodeObject* code) {
    constexpr Py_ssize_t kLocal = 24;
    statistics.diverted++;
    Py_ssize_t count = slot_count(code);
    PyObject* local[kLocal + 2];
    std::unique_ptr<PyObject*[]> large(count > kLocal ? new PyObject*[count + 2] : nullptr);
    PyObject** argv = (large ? large.get() : local) + 1;
    argv[0] = object(frame_function(frame));
    for (Py_ssize_t i = 0; i < count; i++) argv[i + 1] = frame_slot(frame, i);
    PyObject* vm = current.vm;
    PyObject* result;
    {
        Scope off(Mode::Off);  // the outer Scope owns the VM
        result = PyObject_Vectorcall(vm, argv, (count + 1) | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
    }
    if (result == natively) {
        Py_DECREF(result);
        return natively;
    }
    end_unrun_frame(thread, frame);
    return result;
}

enum class Handling { DivertToVm, Natively, NativelyWithHookOff };

Handling handling_when_hooked(PyThreadState* thread, Frame* frame, PyCodeObject* code, int throwing) {
    CodeState* state = find_code_state(code);
    if ((state && state->skip) || runs_for_interpreter(thread)) return Handling::NativelyWithHookOff;
    bool resumed = throwing || !is_on_thread(frame);  // a generator that has started
    if (resumed || !is_function_body(code) || frame_names(frame)) return Handling::Natively;
    return Handling::DivertToVm;
}

__attribute__((noinline)) PyObject* evaluate_when_hooked(PyThreadState* thread, Frame* frame, int throwing) {
    PyCodeObject* code = frame_code(frame);
    Handling handling = handling_when_hooked(thread, frame, code, throwing);
    if (handling == Handling::DivertToVm && LIKELY(!low_on_stack())) {
        PyObject* result = divert_to_vm(thread, frame, code);
        if (result != natively) return result;
        handling = handling_when_hooked(thread, frame, code,
                                        throwing);  // the VM may have marked the code with `skip`
    }
    if (handling != Handling::NativelyWithHookOff) return evaluate_natively(thread, frame, throwing);
    Scope off(Mode::Off);
    return evaluate_natively(thread, frame, throwing);
}

PyObject* evaluate_hooked(PyThreadState* thread, Frame* frame, int throwing) {
    if (LIKELY(current.mode == Mode::Off)) return evaluate_natively(thread, frame, throwing);
    return evaluate_when_hooked(thread, frame, throwing);
}

PyObject* py_skip(PyObject*, PyObject* target) {
    if (PyFunction_Check(target)) target = PyFunction_GET_CODE(target);
    if (!PyCode_Check(target))
        return PyErr_Format(PyExc_TypeError, "skip: expected a function or a code object");
    CodeState* state = code_state(reinterpret_cast<PyCodeObject*>(target));
    if (!state) return nullptr;
    state->skip = true;
    Py_RETURN_NONE;
}

PyObject* py_call_with_frame_hook(PyObject*, PyObject* args) {
    PyObject *fn, *positional, *named, *vm;
    if (!PyArg_ParseTuple(args, "OO!OO:call_with_frame_hook", &fn, &PyTuple_Type, &positional, &named, &vm))
        return nullptr;
    if (named != Py_None && !PyDict_Check(named))
        return PyErr_Format(PyExc_TypeError, "call_with_frame_hook: kwargs must be a dict or None");
    if (!PyCallable_Check(vm))
        return PyErr_Format(PyExc_TypeError, "call_with_frame_hook: the VM must be callable");
    Scope window(Mode::Hooked, vm);
    return PyObject_Call(fn, positional, named == Py_None ? nullptr : named);
}

PyObject* py_state(PyObject*, PyObject*) {
    return Py_BuildValue(
        "{s:s,s:O,s:i,s:l,s:l,s:l,s:l}", "mode", current.mode == Mode::Off ? "off" : "hooked", "installed",
        installed ? Py_True : Py_False, "hooked_threads", hooked_threads, "hits", statistics.hits, "misses",
        statistics.misses, "callbacks", statistics.callbacks, "diverted", statistics.diverted);
}

PyMethodDef frame_hook_functions[] = {
    {"skip", py_skip, METH_O,
     "skip(function or code): the frame hook lets it, and all that it calls, run natively."},
    {"call_with_frame_hook", py_call_with_frame_hook, METH_VARARGS,
     R"(call_with_frame_hook(fn, args, kwargs, vm): fn(*args, **kwargs), with the Python functions that native code calls diverted to vm.

vm(function, *slots) replaces each of these calls. kwargs may be None. The VM may return NATIVELY: the function then runs
natively, under the same hook unless `skip` marked it.)"},
    {"state", py_state, METH_NOARGS, "state(): counters and the state of the frame hook, as a dict."},
    {}};

}  // namespace

int init_frame_hook(PyObject* module) {
    interpreter = PyInterpreterState_Get();
    natively = PyObject_CallNoArgs(object(&PyBaseObject_Type));
    if (!natively || PyModule_AddObjectRef(module, "NATIVELY", natively) < 0) return -1;
    return PyModule_AddFunctions(module, frame_hook_functions);
}

}  // namespace smelt::calls
