// The frame hook: how calls reach compiled code, and how Python functions called by native code reach the
// capture VM.
//
// `wrap(fn, callback)` makes a callable that looks for a compiled entry before fn has a frame: it binds the
// arguments to the function's argument slots itself, so nothing is installed in the interpreter and all other
// Python code runs at full speed. Entries belong to a code object (or to one wrapper) and are tried in turn,
// the last used first.
//
// `call_window(fn, args, kwargs, vm)` runs native code for real while every Python function that it calls
// back is handed to `vm`. Only then a PEP 523 hook is in place: it costs all Python code on all threads its
// inlined calls.
//
// What always holds, under the GIL:
//   - An entry list is an immutable tuple; a change replaces it, so a walker that holds a reference is never
//     disturbed.
//   - A thread's mode is WINDOW only while native code called by `call_window` runs; in the VM, in code marked
//     by `skip` and everywhere else it is OFF.
//   - The hook is installed if and only if some thread is in WINDOW mode.
#include "cpython.h"

#include "calls/binding.h"
#include "guards/guards.h"
#include "module.h"

#include <pthread.h>
#include <structmember.h>

#include <memory>
#include <utility>

namespace smelt {
namespace {

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

PyObject* object(void* p) {
    return static_cast<PyObject*>(p);
}

// ------------------------------------------------------------------------------------------ thread state

enum class Mode { Off, Window };

struct Thread {
    Mode mode = Mode::Off;
    PyObject* vm = nullptr;  // owned by the Scope that set it; WINDOW mode
    uintptr_t stack_floor =
        UINTPTR_MAX;          // below this address the C stack counts as used up; UINTPTR_MAX: not known yet
    uintptr_t stack_low = 0;  // the lowest address of the C stack
};
// initial-exec: one load per frame instead of a call to __tls_get_addr.
__attribute__((tls_model("initial-exec"))) thread_local Thread current;

PyInterpreterState* interpreter;
_PyFrameEvalFunction previous_evaluator = _PyEval_EvalFrameDefault;
bool installed = false;
int windows = 0;  // threads in WINDOW mode
struct {
    long hits = 0, misses = 0, callbacks = 0, diverted = 0;
} statistics;

PyObject* evaluate_hooked(PyThreadState* thread, Frame* frame, int throwing);

void install_or_remove_hook() {
    bool wanted = windows > 0;
    if (wanted == installed) return;
    _PyFrameEvalFunction now = _PyInterpreterState_GetEvalFrameFunc(interpreter);
    if (wanted) {
        if (now != evaluate_hooked) previous_evaluator = now;
        _PyInterpreterState_SetEvalFrameFunc(interpreter, evaluate_hooked);
    } else if (now == evaluate_hooked) {
        _PyInterpreterState_SetEvalFrameFunc(interpreter, previous_evaluator);
    } else {
        return;  // another hook was put on top of ours and calls it: leave both
    }
    installed = wanted;
}

// Puts this thread in another mode for the life of the object.
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
        windows += (mode == Mode::Window) - (current.mode == Mode::Window);
        current.mode = mode;
        install_or_remove_hook();
    }

    Mode mode_;
    PyObject* vm_;
};

// ----------------------------------------------------------------------------------------- C stack depth

__attribute__((noinline)) void measure_stack() {
    constexpr size_t kReserve = 512u << 10;
    current.stack_floor = 0;
    pthread_attr_t attributes;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0) return;
    void* low;
    size_t size;
    if (pthread_attr_getstack(&attributes, &low, &size) == 0) {
        current.stack_low = reinterpret_cast<uintptr_t>(low);
        current.stack_floor = current.stack_low + (size / 4 < kReserve ? size / 4 : kReserve);
    }
    pthread_attr_destroy(&attributes);
}

bool low_on_stack() {
    uintptr_t here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
    if (LIKELY(here >= current.stack_floor)) return false;
    if (current.stack_floor == UINTPTR_MAX) measure_stack();
    return here < current.stack_floor &&
           here >= current.stack_low;  // below stack_low: not the thread's own stack
}

PyObject* raise_depth() {
    PyErr_SetString(PyExc_RecursionError, "maximum recursion depth exceeded (C stack)");
    return nullptr;
}

// ----------------------------------------------------------------------------------------------- entries

// The compiled variants of a function: a tuple of (guard or None, compiled or None) pairs, or null when
// empty.
struct EntryTable {
    PyObject* entries = nullptr;  // owned
    Py_ssize_t recent = 0;        // index of the last entry that answered: it is tried first
    bool closed = false;          // the callback is not asked any more

    Py_ssize_t count() const { return entries ? PyTuple_GET_SIZE(entries) : 0; }

    void replace(PyObject* fresh) {
        recent = 0;
        PyObject* old = std::exchange(entries, fresh);
        Py_XDECREF(old);
    }
};

struct CodeState {  // lives as long as its code object
    EntryTable table;
    bool skip = false;  // smelt's own code: runs as it is, with this thread's hook off, callees too
};

Py_ssize_t extra_index;

void release_code_state(void* p) {
    auto* state = static_cast<CodeState*>(p);
    if (!state) return;
    state->table.replace(nullptr);
    delete state;
}

CodeState* find_code_state(PyCodeObject* code) {
    return static_cast<CodeState*>(get_code_extra(code, extra_index));
}

CodeState* code_state(PyCodeObject* code) {  // makes it if need be; null with a Python error
    if (CodeState* state = find_code_state(code)) return state;
    auto state = std::make_unique<CodeState>();
    if (set_code_extra(code, extra_index, state.get()) < 0) return nullptr;
    return state.release();
}

bool closed(const EntryTable& own, const CodeState* state) {
    return own.closed || (state && state->table.closed);
}

// ------------------------------------------------------------------------------------------- the wrapper

struct Wrapped {
    PyObject_HEAD vectorcallfunc vectorcall;
    PyObject* fn;  // a function; never cleared, since it may still be called
    PyObject* callback;
    PyObject* dict;
    PyObject* weakrefs;
    EntryTable table;  // entries of this wrapper alone
};

// A guard's answer about a call.
struct Match {
    PyObject* entry = nullptr;   // owned: a (guard, compiled) pair
    PyObject* inputs = nullptr;  // owned: the tensors collected by the guard
    PyObject* after = nullptr;   // owned: to be called once the eager run of the call has returned
    Match() = default;
    Match(const Match&) = delete;
    Match& operator=(const Match&) = delete;
    ~Match() {
        Py_XDECREF(entry);
        Py_XDECREF(inputs);
        Py_XDECREF(after);
    }
    PyObject* compiled() const { return PyTuple_GET_ITEM(entry, 1); }
};

PyObject* empty_tuple;
extern PyTypeObject wrapped_type;

bool find_in_table(EntryTable& table, const Slots& slots, Match* match) {
    Py_ssize_t count = table.count();
    if (!count) return false;
    PyObject* entries = Py_NewRef(table.entries);
    for (Py_ssize_t k = 0, i = table.recent; k < count && !match->entry; k++, i = i + 1 < count ? i + 1 : 0) {
        PyObject* entry = PyTuple_GET_ITEM(entries, i);
        PyObject* guard = PyTuple_GET_ITEM(entry, 0);
        match->inputs =
            guard == Py_None ? Py_NewRef(empty_tuple) : check_guard_tree(guard, slots.data(), slots.size());
        if (!match->inputs) continue;
        match->entry = Py_NewRef(entry);
        if (table.entries == entries) table.recent = i;
    }
    Py_DECREF(entries);
    return match->entry;
}

bool find_entry(EntryTable& own, PyCodeObject* code, const Slots& slots, Match* match) {
    if (find_in_table(own, slots, match)) return true;
    CodeState* state = find_code_state(code);
    return state && find_in_table(state->table, slots, match);
}

PyObject* call_compiled(const Match& match, const Slots& slots) {
    constexpr Py_ssize_t kLocal = 24;
    PyObject* local[kLocal + 2];
    Py_ssize_t count = slots.size();
    std::unique_ptr<PyObject*[]> large(count > kLocal ? new PyObject*[count + 2] : nullptr);
    PyObject** argv = (large ? large.get() : local) + 1;  // argv[-1] is the callee's to use
    for (Py_ssize_t i = 0; i < count; i++) argv[i] = slots.data()[i];
    argv[count] = match.inputs;
    return PyObject_Vectorcall(match.compiled(), argv, (count + 1) | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
}

// Asks the callback to compile for this call. 1: look again, 0: run eagerly, -1: it raised.
int ask_callback(Wrapped* self, const Slots& slots, Match* match) {
    statistics.callbacks++;
    PyObject* tuple = slots.tuple();
    if (!tuple) return -1;
    PyObject* argv[] = {self->fn, tuple};
    PyObject* callback = Py_NewRef(self->callback);
    PyObject* answer = PyObject_Vectorcall(callback, argv, 2, nullptr);
    Py_DECREF(callback);
    Py_DECREF(tuple);
    if (!answer) return -1;
    if (PyCallable_Check(answer)) {
        match->after = answer;
        return 0;
    }
    int again = PyObject_IsTrue(answer);
    Py_DECREF(answer);
    return again;
}

// What `last_refused` gives is kept in the interpreter's dictionary of the thread, which goes with the thread.
constexpr const char* kRefused = "smelt.last_refused";

void note_refused(PyCodeObject* code) {
    PyObject* own = PyThreadState_GetDict();
    if (own && PyDict_SetItemString(own, kRefused, object(code)) < 0) PyErr_Clear();
}

// 1: `match` is the entry that answers the call, 0: run eagerly, -1: a Python error.
int find_or_compile(Wrapped* self, PyCodeObject* code, const Slots& slots, Match* match) {
    if (find_entry(self->table, code, slots, match)) return 1;
    statistics.misses++;
    if (closed(self->table, find_code_state(code)) || !self->callback) return 0;
    int again = ask_callback(self, slots, match);
    if (again <= 0) return again;
    if (find_entry(self->table, code, slots, match)) return 1;
    // The fresh guard refuses the very call that it was made for. Asking again would not end.
    note_refused(code);
    return 0;
}

// Runs the function itself. `after` (owned, or null) is called if it returns, and may raise in its place.
PyObject* call_eagerly(Wrapped* self, PyObject* const* args, size_t nargsf, PyObject* names,
                       PyObject* after) {
    PyObject* result = PyObject_Vectorcall(self->fn, args, nargsf, names);
    if (LIKELY(!after)) return result;
    PyObject* done = result ? PyObject_CallNoArgs(after) : nullptr;
    if (result && !done) Py_CLEAR(result);
    Py_XDECREF(done);
    Py_DECREF(after);
    return result;
}

constexpr int kNotCaptured = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE;

// What a compiled frame returns to have another function called in its place: the stack does not grow.
struct Tail {
    PyObject_HEAD PyObject* target;  // both owned, never null
    PyObject* arguments;             // a tuple
};
extern PyTypeObject tail_type;

// One call, whose answer may be a Tail.
PyObject* call_once(PyObject* callable, PyObject* const* args, size_t nargsf, PyObject* names) {
    auto* self = reinterpret_cast<Wrapped*>(callable);
    if (UNLIKELY(low_on_stack())) return raise_depth();
    // In a window the hook hands the function to the VM.
    if (UNLIKELY(current.mode == Mode::Window)) return PyObject_Vectorcall(self->fn, args, nargsf, names);
    auto* fn = reinterpret_cast<PyFunctionObject*>(self->fn);
    auto* code = reinterpret_cast<PyCodeObject*>(fn->func_code);
    if (UNLIKELY(code->co_flags & kNotCaptured)) return PyObject_Vectorcall(self->fn, args, nargsf, names);
    Py_INCREF(code);  // __code__ may be replaced meanwhile
    PyObject *result = nullptr, *after = nullptr;
    bool eager = false;
    {
        Slots slots;
        Match match;
        int found = slots.bind(fn, args, PyVectorcall_NARGS(nargsf), names);
        if (found > 0) found = find_or_compile(self, code, slots, &match);
        eager = found == 0 || (found > 0 && match.compiled() == Py_None);
        if (found > 0 && !eager) {
            statistics.hits++;
            result = call_compiled(match, slots);
        }
        after = std::exchange(match.after, nullptr);
    }
    Py_DECREF(code);
    return eager ? call_eagerly(self, args, nargsf, names, after) : result;
}

// The result of a tail (owned), which may be a Tail again.
PyObject* follow(Tail* tail) {
    PyObject* target = Py_NewRef(tail->target);
    PyObject* arguments = std::exchange(tail->arguments, Py_NewRef(empty_tuple));
    Py_DECREF(tail);
    PyObject* const* items = &PyTuple_GET_ITEM(arguments, 0);
    size_t count = PyTuple_GET_SIZE(arguments);
    PyObject* result = Py_IS_TYPE(target, &wrapped_type) ? call_once(target, items, count, nullptr)
                                                         : PyObject_Vectorcall(target, items, count, nullptr);
    Py_DECREF(arguments);
    Py_DECREF(target);
    return result;
}

PyObject* call_wrapper(PyObject* callable, PyObject* const* args, size_t nargsf, PyObject* names) {
    PyObject* result = call_once(callable, args, nargsf, names);
    while (UNLIKELY(result && Py_IS_TYPE(result, &tail_type)))
        result = follow(reinterpret_cast<Tail*>(result));
    return result;
}

int traverse_tail(PyObject* self, visitproc visit, void* arg) {
    auto* tail = reinterpret_cast<Tail*>(self);
    Py_VISIT(tail->target);
    Py_VISIT(tail->arguments);
    return 0;
}

void dealloc_tail(PyObject* self) {
    auto* tail = reinterpret_cast<Tail*>(self);
    PyObject_GC_UnTrack(self);
    Py_DECREF(tail->target);
    Py_DECREF(tail->arguments);
    PyObject_GC_Del(self);
}

PyTypeObject tail_type = {PyVarObject_HEAD_INIT(nullptr, 0) "smelt._native.Tail", sizeof(Tail)};

int ready_tail_type() {
    tail_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION;
    tail_type.tp_traverse = traverse_tail;
    tail_type.tp_dealloc = dealloc_tail;
    return PyType_Ready(&tail_type);
}

PyObject* py_tail(PyObject*, PyObject* const* args, Py_ssize_t count) {
    if (count < 1 || !PyCallable_Check(args[0]))
        return PyErr_Format(PyExc_TypeError, "tail: the first argument must be callable");
    PyObject* arguments = PyTuple_New(count - 1);
    auto* tail = arguments ? PyObject_GC_New(Tail, &tail_type) : nullptr;
    if (!tail) {
        Py_XDECREF(arguments);
        return nullptr;
    }
    for (Py_ssize_t i = 1; i < count; i++) PyTuple_SET_ITEM(arguments, i - 1, Py_NewRef(args[i]));
    tail->target = Py_NewRef(args[0]);
    tail->arguments = arguments;
    PyObject_GC_Track(tail);
    return object(tail);
}

PyObject* bind_wrapper(PyObject* self, PyObject* instance, PyObject*) {
    return instance && instance != Py_None ? PyMethod_New(self, instance) : Py_NewRef(self);
}

int traverse_wrapper(PyObject* self, visitproc visit, void* arg) {
    auto* w = reinterpret_cast<Wrapped*>(self);
    Py_VISIT(w->fn);
    Py_VISIT(w->callback);
    Py_VISIT(w->dict);
    Py_VISIT(w->table.entries);
    return 0;
}

int clear_wrapper(PyObject* self) {
    auto* w = reinterpret_cast<Wrapped*>(self);
    Py_CLEAR(w->callback);
    Py_CLEAR(w->dict);
    w->table.replace(nullptr);
    return 0;
}

void dealloc_wrapper(PyObject* self) {
    auto* w = reinterpret_cast<Wrapped*>(self);
    PyObject_GC_UnTrack(self);
    if (w->weakrefs) PyObject_ClearWeakRefs(self);
    clear_wrapper(self);
    Py_DECREF(w->fn);
    PyObject_GC_Del(self);
}

PyObject* repr_wrapper(PyObject* self) {
    return PyUnicode_FromFormat("<compiled %R>", reinterpret_cast<Wrapped*>(self)->fn);
}

// Own attributes first, then the function's: __code__, __defaults__, __annotations__, ...
PyObject* get_wrapper_attribute(PyObject* self, PyObject* name) {
    PyObject* value = PyObject_GenericGetAttr(self, name);
    if (value || !PyErr_ExceptionMatches(PyExc_AttributeError)) return value;
    PyErr_Clear();
    return PyObject_GetAttr(reinterpret_cast<Wrapped*>(self)->fn, name);
}

// __name__ and the like: what was set on the wrapper, else the function's.
PyObject* get_named(PyObject* self, void* name) {
    auto* w = reinterpret_cast<Wrapped*>(self);
    PyObject* own = w->dict ? PyDict_GetItemString(w->dict, static_cast<char*>(name)) : nullptr;
    return own ? Py_NewRef(own) : PyObject_GetAttrString(w->fn, static_cast<char*>(name));
}

int set_named(PyObject* self, PyObject* value, void* name) {
    PyObject* dict = PyObject_GenericGetDict(self, nullptr);
    if (!dict) return -1;
    int failed = value ? PyDict_SetItemString(dict, static_cast<char*>(name), value)
                       : PyDict_DelItemString(dict, static_cast<char*>(name));
    Py_DECREF(dict);
    return failed;
}

// Copies as a function does: not at all.
PyObject* copy_wrapper(PyObject* self, PyObject*) {
    return Py_NewRef(self);
}

PyGetSetDef wrapper_properties[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {"__name__", get_named, set_named, nullptr, const_cast<char*>("__name__")},
    {"__qualname__", get_named, set_named, nullptr, const_cast<char*>("__qualname__")},
    {"__module__", get_named, set_named, nullptr, const_cast<char*>("__module__")},
    {"__doc__", get_named, set_named, nullptr, const_cast<char*>("__doc__")},
    {}};
PyMemberDef wrapper_members[] = {
    {"__wrapped__", T_OBJECT, offsetof(Wrapped, fn), READONLY, "the function that was compiled"}, {}};
PyMethodDef wrapper_methods[] = {
    {"__copy__", copy_wrapper, METH_NOARGS, nullptr}, {"__deepcopy__", copy_wrapper, METH_O, nullptr}, {}};

PyTypeObject wrapped_type = {PyVarObject_HEAD_INIT(nullptr, 0) "smelt._native.Wrapped", sizeof(Wrapped)};

int ready_wrapped_type() {
    PyTypeObject& t = wrapped_type;
    t.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                 Py_TPFLAGS_METHOD_DESCRIPTOR | Py_TPFLAGS_DISALLOW_INSTANTIATION;
    t.tp_vectorcall_offset = offsetof(Wrapped, vectorcall);
    t.tp_weaklistoffset = offsetof(Wrapped, weakrefs);
    t.tp_dictoffset = offsetof(Wrapped, dict);
    t.tp_call = PyVectorcall_Call;
    t.tp_descr_get = bind_wrapper;
    t.tp_traverse = traverse_wrapper;
    t.tp_clear = clear_wrapper;
    t.tp_dealloc = dealloc_wrapper;
    t.tp_repr = repr_wrapper;
    t.tp_getattro = get_wrapper_attribute;
    t.tp_setattro = PyObject_GenericSetAttr;
    t.tp_getset = wrapper_properties;
    t.tp_members = wrapper_members;
    t.tp_methods = wrapper_methods;
    return PyType_Ready(&t);
}

// --------------------------------------------------------------------------------------------- the hook

bool is_function_body(PyCodeObject* code) {  // not a module, a class body, or exec'd code
    constexpr int kFunction = CO_OPTIMIZED | CO_NEWLOCALS;
    return (code->co_flags & kFunction) == kFunction;
}

PyObject* evaluate_natively(PyThreadState* thread, Frame* frame, int throwing) {
    if (UNLIKELY(low_on_stack()) && frame->owner == FRAME_OWNED_BY_THREAD && !throwing) {
        raise_depth();
        end_unrun_frame(thread, frame);
        return nullptr;
    }
    return evaluate_uncharged(previous_evaluator, thread, frame, throwing);
}

PyObject* natively;  // what the VM answers when it wants a frame to be evaluated as it is

// Null with a Python error, the value of the call, or `natively` (borrowed): the frame has not been touched.
PyObject* hand_to_vm(PyThreadState* thread, Frame* frame, PyCodeObject* code) {
    constexpr Py_ssize_t kLocal = 24;
    statistics.diverted++;
    Py_ssize_t count = slot_count(code);
    PyObject* local[kLocal + 2];
    std::unique_ptr<PyObject*[]> large(count > kLocal ? new PyObject*[count + 2] : nullptr);
    PyObject** argv = (large ? large.get() : local) + 1;
    argv[0] = object(frame_function(frame));
    for (Py_ssize_t i = 0; i < count; i++) argv[i + 1] = frame->localsplus[i];
    PyObject* vm = current.vm;
    PyObject* result;
    {
        Scope off(Mode::Off);  // the window's scope holds the VM
        result = PyObject_Vectorcall(vm, argv, (count + 1) | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
    }
    if (result == natively) {
        Py_DECREF(result);
        return natively;
    }
    end_unrun_frame(thread, frame);
    return result;
}

enum class Handling { HandToVm, Natively, NativelyWithHookOff };

Handling handling_in_window(PyThreadState* thread, Frame* frame, PyCodeObject* code, int throwing) {
    CodeState* state = find_code_state(code);
    if ((state && state->skip) || runs_for_interpreter(thread)) return Handling::NativelyWithHookOff;
    bool resumed = throwing || frame->owner != FRAME_OWNED_BY_THREAD;  // a generator that has started
    if (resumed || !is_function_body(code) || frame->f_locals) return Handling::Natively;
    return Handling::HandToVm;
}

__attribute__((noinline)) PyObject* evaluate_in_window(PyThreadState* thread, Frame* frame, int throwing) {
    PyCodeObject* code = frame_code(frame);
    Handling handling = handling_in_window(thread, frame, code, throwing);
    if (handling == Handling::HandToVm && LIKELY(!low_on_stack())) {
        PyObject* result = hand_to_vm(thread, frame, code);
        if (result != natively) return result;
        handling = handling_in_window(thread, frame, code, throwing);  // the VM may have marked the code
    }
    if (handling != Handling::NativelyWithHookOff) return evaluate_natively(thread, frame, throwing);
    Scope off(Mode::Off);
    return evaluate_natively(thread, frame, throwing);
}

PyObject* evaluate_hooked(PyThreadState* thread, Frame* frame, int throwing) {
    if (LIKELY(current.mode == Mode::Off)) return evaluate_natively(thread, frame, throwing);
    return evaluate_in_window(thread, frame, throwing);
}

// -------------------------------------------------------------------------------------------- module API

PyObject* py_wrap(PyObject*, PyObject* args) {
    PyObject *fn, *callback = Py_None;
    if (!PyArg_ParseTuple(args, "O!|O:wrap", &PyFunction_Type, &fn, &callback)) return nullptr;
    if (callback != Py_None && !PyCallable_Check(callback))
        return PyErr_Format(PyExc_TypeError, "wrap: the callback must be callable or None");
    auto* self = PyObject_GC_New(Wrapped, &wrapped_type);
    if (!self) return nullptr;
    self->vectorcall = call_wrapper;
    self->fn = Py_NewRef(fn);
    self->callback = callback == Py_None ? nullptr : Py_NewRef(callback);
    self->dict = self->weakrefs = nullptr;
    self->table = EntryTable();
    PyObject_GC_Track(self);
    return object(self);
}

// The entry table of a code object or of one wrapper; null with a TypeError for anything else.
EntryTable* table_of(PyObject* target) {
    if (Py_IS_TYPE(target, &wrapped_type)) return &reinterpret_cast<Wrapped*>(target)->table;
    if (PyCode_Check(target)) {
        CodeState* state = code_state(reinterpret_cast<PyCodeObject*>(target));
        return state ? &state->table : nullptr;
    }
    PyErr_Format(PyExc_TypeError, "expected a code object or a compiled function, not %.100s",
                 Py_TYPE(target)->tp_name);
    return nullptr;
}

// The table's entries and one more. Building a tuple may run other Python code, which may change the table.
PyObject* appended(const EntryTable& table, PyObject* entry) {
    for (;;) {
        Py_ssize_t count = table.count();
        PyObject* fresh = PyTuple_New(count + 1);
        if (!fresh) return nullptr;
        if (table.count() == count) {
            for (Py_ssize_t i = 0; i < count; i++)
                PyTuple_SET_ITEM(fresh, i, Py_NewRef(PyTuple_GET_ITEM(table.entries, i)));
            PyTuple_SET_ITEM(fresh, count, Py_NewRef(entry));
            return fresh;
        }
        Py_DECREF(fresh);
    }
}

PyObject* py_add_entry(PyObject*, PyObject* args) {
    PyObject *target, *guard, *compiled;
    if (!PyArg_ParseTuple(args, "OOO:add_entry", &target, &guard, &compiled)) return nullptr;
    if (guard != Py_None && !is_guard_tree(guard))
        return PyErr_Format(PyExc_TypeError, "add_entry: a guard is a GuardTree or None");
    if (compiled != Py_None && !PyCallable_Check(compiled))
        return PyErr_Format(PyExc_TypeError, "add_entry: compiled must be callable or None");
    EntryTable* table = table_of(target);
    PyObject* entry = table ? PyTuple_Pack(2, guard, compiled) : nullptr;
    PyObject* fresh = entry ? appended(*table, entry) : nullptr;
    Py_XDECREF(entry);
    if (!fresh) return nullptr;
    table->replace(fresh);
    Py_RETURN_NONE;
}

PyObject* py_entries(PyObject*, PyObject* target) {
    EntryTable* table = table_of(target);
    if (!table) return nullptr;
    return table->entries ? PySequence_List(table->entries) : PyList_New(0);
}

PyObject* py_count(PyObject*, PyObject* target) {
    EntryTable* table = table_of(target);
    return table ? PyLong_FromSsize_t(table->count()) : nullptr;
}

PyObject* py_clear(PyObject*, PyObject* target) {
    EntryTable* table = table_of(target);
    if (!table) return nullptr;
    table->closed = false;
    table->replace(nullptr);
    Py_RETURN_NONE;
}

PyObject* py_close(PyObject*, PyObject* target) {
    EntryTable* table = table_of(target);
    if (!table) return nullptr;
    table->closed = true;
    Py_RETURN_NONE;
}

PyObject* py_is_closed(PyObject*, PyObject* target) {
    EntryTable* table = table_of(target);
    return table ? PyBool_FromLong(table->closed) : nullptr;
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

PyObject* py_call_window(PyObject*, PyObject* args) {
    PyObject *fn, *positional, *named, *vm;
    if (!PyArg_ParseTuple(args, "OO!OO:call_window", &fn, &PyTuple_Type, &positional, &named, &vm))
        return nullptr;
    if (named != Py_None && !PyDict_Check(named))
        return PyErr_Format(PyExc_TypeError, "call_window: kwargs must be a dict or None");
    if (!PyCallable_Check(vm)) return PyErr_Format(PyExc_TypeError, "call_window: the VM must be callable");
    Scope window(Mode::Window, vm);
    return PyObject_Call(fn, positional, named == Py_None ? nullptr : named);
}

PyObject* py_last_refused(PyObject*, PyObject*) {
    PyObject* own = PyThreadState_GetDict();
    PyObject* code = own ? Py_XNewRef(PyDict_GetItemString(own, kRefused)) : nullptr;
    if (!code) return Py_NewRef(Py_None);
    if (PyDict_DelItemString(own, kRefused) < 0) PyErr_Clear();
    return code;
}

PyObject* py_state(PyObject*, PyObject*) {
    return Py_BuildValue(
        "{s:s,s:O,s:i,s:l,s:l,s:l,s:l}", "mode", current.mode == Mode::Off ? "off" : "window", "installed",
        installed ? Py_True : Py_False, "windows", windows, "hits", statistics.hits, "misses",
        statistics.misses, "callbacks", statistics.callbacks, "diverted", statistics.diverted);
}

PyMethodDef functions[] = {
    {"wrap", py_wrap, METH_VARARGS,
     "wrap(fn, callback=None): a callable that answers calls of the function `fn` from compiled entries.\n\n"
     "On a miss callback(fn, slots) is called; true means look again, false means run this call eagerly. "
     "A callable\n"
     "means: run eagerly, then call it unless that raised."},
    {"add_entry", py_add_entry, METH_VARARGS,
     "add_entry(target, guard, compiled): calls that `guard` accepts run compiled(*slots, inputs).\n\n"
     "`target` is a code object or one wrapper, `guard` a GuardTree or None (accepts every call), `inputs` "
     "the tuple\n"
     "of tensors the guard collected. compiled None: such calls run eagerly, and the callback is not asked."},
    {"entries", py_entries, METH_O, "entries(target): the list of (guard, compiled)."},
    {"count", py_count, METH_O, "count(target): the number of entries."},
    {"clear", py_clear, METH_O, "clear(target): drop all entries and ask the callback again."},
    {"close", py_close, METH_O,
     "close(target): do not ask the callback any more; existing entries still answer."},
    {"is_closed", py_is_closed, METH_O,
     "is_closed(target): whether `close` was called since the last `clear`."},
    {"skip", py_skip, METH_O, "skip(function or code): windows let it, and all it calls, run as it is."},
    {"call_window", py_call_window, METH_VARARGS,
     "call_window(fn, args, kwargs, vm): fn(*args, **kwargs), where every Python function that native code "
     "calls is\n"
     "replaced by vm(function, *slots). kwargs may be None. The VM may answer NATIVELY: the function then "
     "runs as it is,\n"
     "in the same window unless it is marked by `skip`."},
    {"tail", reinterpret_cast<PyCFunction>(py_tail), METH_FASTCALL,
     "tail(target, *args): what a compiled frame returns so that target(*args) is called in its place."},
    {"last_refused", py_last_refused, METH_NOARGS,
     "last_refused(): the code object of this thread's last call that no entry accepted although the "
     "callback had\n"
     "asked to look again, else None. Asking forgets it."},
    {"state", py_state, METH_NOARGS, "state(): counters, and what is switched on, as a dict."},
    {}};

}  // namespace

int init_hook(PyObject* module) {
    interpreter = PyInterpreterState_Get();
    if (ready_wrapped_type() < 0 || ready_tail_type() < 0 || !(empty_tuple = PyTuple_New(0))) return -1;
    extra_index = request_code_extra(release_code_state);
    if (extra_index < 0 || !code_extra_layout_known(extra_index, new CodeState)) {
        PyErr_SetString(PyExc_ImportError, "smelt: cannot attach data to code objects of this interpreter");
        return -1;
    }
    natively = PyObject_CallNoArgs(object(&PyBaseObject_Type));
    if (!natively || PyModule_AddObjectRef(module, "NATIVELY", natively) < 0) return -1;
    if (PyModule_AddObjectRef(module, "Wrapped", object(&wrapped_type)) < 0) return -1;
    return PyModule_AddFunctions(module, functions);
}

}  // namespace smelt
