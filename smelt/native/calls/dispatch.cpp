// Dispatch of a call to compiled code.
//
// A wrapper looks for a compiled entry before its function has a frame. It binds the arguments to the function's
// argument slots itself, so it installs nothing in the interpreter and all other Python code runs at full speed. It
// tries the entries in turn, the most recently used first; on a miss it asks its callback to compile.
#include "calls/argument_binding.h"
#include "calls/entries.h"
#include "calls/c_stack.h"
#include "calls/tail_call.h"
#include "calls/active_tracers.h"
#include "calls/wrapper.h"
#include "guards/guard_tree.h"
#include "module.h"
#include "bindings/plan.h"

#include <memory>
#include <utility>

namespace smelt::calls {
namespace {

PyObject* empty_tuple;

// The entry that answers a call.
struct Match {
    PyObject* entry = nullptr;  // owned: (guard, compiled, only)
    guards::Collected inputs;   // the tensors that the guard collected
    PyObject* after = nullptr;  // owned: called after the eager run of the call has returned
    Match() = default;
    Match(const Match&) = delete;
    Match& operator=(const Match&) = delete;
    ~Match() {
        Py_XDECREF(entry);
        Py_XDECREF(after);
    }
    PyObject* compiled() const { return PyTuple_GET_ITEM(entry, 1); }
    PyObject* only() const { return PyTuple_GET_ITEM(entry, 2); }
};

bool find_in_table(EntryTable& table, const Slots& slots, Match* match) {
    Py_ssize_t count = table.count();
    if (!count) return false;
    PyObject* entries = Py_NewRef(table.entries);
    for (Py_ssize_t k = 0, i = table.recent; k < count && !match->entry; k++, i = i + 1 < count ? i + 1 : 0) {
        PyObject* entry = PyTuple_GET_ITEM(entries, i);
        PyObject* guard = PyTuple_GET_ITEM(entry, 0);
        if (guard != Py_None && !guards::check_guard_tree(guard, slots.data(), slots.size(), match->inputs))
            continue;
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

// The item of the tuple that a graph returned.
PyObject* single_output(PyObject* result) {
    if (!result) return nullptr;
    PyObject* item = nullptr;
    if (LIKELY(PyTuple_CheckExact(result) && PyTuple_GET_SIZE(result) == 1))
        item = Py_NewRef(PyTuple_GET_ITEM(result, 0));
    else
        PyErr_SetString(PyExc_SystemError, "smelt: a graph of one result gave something else");
    Py_DECREF(result);
    return item;
}

// Calls a graph with one result.
PyObject* call_graph(PyObject* graph, guards::Collected& inputs) {
    if (LIKELY(is_plan(graph) && plan_outputs(graph) == 1))
        return call_plan_of_one(graph, {inputs.data(), static_cast<size_t>(inputs.size())});
    PyObject* tuple = inputs.tuple();
    return tuple ? single_output(PyObject_Vectorcall(graph, &tuple, 1, nullptr)) : nullptr;
}

PyObject* call_compiled(Match& match, const Slots& slots) {
    PyObject* only = match.only();
    if (only != Py_None && is_size_dispatch(only)) {
        const Objects objects{match.inputs.data(), static_cast<size_t>(match.inputs.size())};
        if (PyObject* instance = kernels_only_instance(only, objects)) {
            PyObject* result = call_graph(instance, match.inputs);
            Py_DECREF(instance);
            return result;
        }
        // Otherwise the frame compiles an instance, or calls code that may inspect the frame.
    } else if (only != Py_None) {
        return call_graph(only, match.inputs);
    }
    PyObject* inputs = match.inputs.tuple();
    if (!inputs) return nullptr;
    constexpr Py_ssize_t kLocal = 24;
    PyObject* local[kLocal + 2];
    Py_ssize_t count = slots.size();
    std::unique_ptr<PyObject*[]> large(count > kLocal ? new PyObject*[count + 2] : nullptr);
    PyObject** argv = (large ? large.get() : local) + 1;  // the callee may use argv[-1]
    for (Py_ssize_t i = 0; i < count; i++) argv[i] = slots.data()[i];
    argv[count] = inputs;
    return PyObject_Vectorcall(match.compiled(), argv, (count + 1) | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
}

// Asks the callback to compile for this call. Returns 1: look again, 0: run eagerly, -1: it raised.
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

// The key of `last_refused` in the thread's dictionary, which the interpreter frees with the thread.
constexpr const char* kRefused = "smelt.last_refused";

void record_refused(PyCodeObject* code) {
    PyObject* own = PyThreadState_GetDict();
    if (own && PyDict_SetItemString(own, kRefused, object(code)) < 0) PyErr_Clear();
}

// Returns 1: `match` is the entry that answers the call, 0: run eagerly, -1: a Python error.
int find_or_compile(Wrapped* self, PyCodeObject* code, const Slots& slots, Match* match) {
    if (find_entry(self->table, code, slots, match)) return 1;
    statistics.misses++;
    if (closed(self->table, find_code_state(code)) || !self->callback) return 0;
    int again = ask_callback(self, slots, match);
    if (again <= 0) return again;
    if (find_entry(self->table, code, slots, match)) return 1;
    // The new guard rejects the call that it was created for. Asking again would not terminate.
    record_refused(code);
    return 0;
}

PyObject* follow(TailCall* tail);

// Runs the function itself. `after` (owned, or null) is called if it returns, and may raise instead; then a TailCall
// that the function returns is run here, too. `owner` (or null) is the tuple that holds the arguments, which the
// function may release.
PyObject* call_eagerly(Wrapped* self, PyObject* const* args, size_t nargsf, PyObject* names, PyObject* after,
                       PyObject* owner) {
    PyObject* outer = std::exchange(current.arguments, owner);
    PyObject* result = PyObject_Vectorcall(self->fn, args, nargsf, names);
    current.arguments = outer;
    if (LIKELY(!after)) return result;
    while (result && Py_IS_TYPE(result, &tail_call_type))
        result = follow(reinterpret_cast<TailCall*>(result));
    PyObject* done = result ? PyObject_CallNoArgs(after) : nullptr;
    if (result && !done) Py_CLEAR(result);
    Py_XDECREF(done);
    Py_DECREF(after);
    return result;
}

PyObject* with_backend;    // see set_with_backend; never freed
PyObject* on_line_tracer;  // see set_on_line_tracer; null once it has been called

// Calls a function without arguments, whose exceptions are reported and ignored.
void notify(PyObject* function) {
    Py_INCREF(function);
    PyObject* done = PyObject_CallNoArgs(function);
    if (!done) PyErr_WriteUnraisable(function);
    Py_XDECREF(done);
    Py_DECREF(function);
}

// What runs the call under another tracer or a stance (owned): `self` itself if it has the forced backend. Null with a
// Python error.
PyObject* stand_in(Wrapped* self) {
    PyObject* backend = forced_backend();
    if (!backend) return Py_NewRef(self->traced ? self->traced : self->fn);
    PyObject* found = with_backend ? PyObject_CallFunctionObjArgs(with_backend, self, backend, nullptr)
                                   : Py_NewRef(object(self));
    Py_DECREF(backend);
    return found;
}

constexpr int kNotCaptured = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE;
// Makes one call; the result may be a TailCall. `owner`: see call_eagerly.
PyObject* call_once(PyObject* callable, PyObject* const* args, size_t nargsf, PyObject* names,
                    PyObject* owner = nullptr) {
    auto* self = reinterpret_cast<Wrapped*>(callable);
    if (UNLIKELY(low_on_stack())) return raise_depth();
    Change change = change_of(self);
    if (UNLIKELY(change == Change::Code)) return PyObject_Vectorcall(self->original, args, nargsf, names);
    if (UNLIKELY(change == Change::Defaults && !take_over_defaults(self))) return nullptr;
    // The frame hook diverts the function to the VM.
    if (UNLIKELY(current.mode == Mode::Hooked)) return PyObject_Vectorcall(self->fn, args, nargsf, names);
    if (UNLIKELY(is_traced())) {
        PyObject* instead = stand_in(self);
        PyObject* result =
            instead && instead != callable ? PyObject_Vectorcall(instead, args, nargsf, names) : nullptr;
        bool is_own = instead == callable;
        Py_XDECREF(instead);
        if (!is_own) return result;
    } else if (UNLIKELY(lines_are_traced() && !self->compiled_under_line_tracers)) {
        if (PyObject* function = std::exchange(on_line_tracer, nullptr)) {
            notify(function);
            Py_DECREF(function);
        }
        return call_eagerly(self, args, nargsf, names, nullptr, owner);
    }
    auto* fn = reinterpret_cast<PyFunctionObject*>(self->fn);
    auto* code = reinterpret_cast<PyCodeObject*>(fn->func_code);
    if (UNLIKELY(code->co_flags & kNotCaptured)) return PyObject_Vectorcall(self->fn, args, nargsf, names);
    Py_INCREF(code);  // other code may replace __code__ meanwhile
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
    return eager ? call_eagerly(self, args, nargsf, names, after, owner) : result;
}

// The result of a tail call (owned), which may be a TailCall again.
PyObject* follow(TailCall* tail) {
    PyObject* target = Py_NewRef(tail->target);
    PyObject* arguments = std::exchange(tail->arguments, Py_NewRef(empty_tuple));
    Py_DECREF(tail);
    PyObject* const* items = &PyTuple_GET_ITEM(arguments, 0);
    size_t count = PyTuple_GET_SIZE(arguments);
    PyObject* result = Py_IS_TYPE(target, &wrapped_type) ? call_once(target, items, count, nullptr, arguments)
                                                         : PyObject_Vectorcall(target, items, count, nullptr);
    Py_DECREF(arguments);
    Py_DECREF(target);
    return result;
}

PyObject* py_last_refused(PyObject*, PyObject*) {
    PyObject* own = PyThreadState_GetDict();
    PyObject* code = own ? Py_XNewRef(PyDict_GetItemString(own, kRefused)) : nullptr;
    if (!code) return Py_NewRef(Py_None);
    if (PyDict_DelItemString(own, kRefused) < 0) PyErr_Clear();
    return code;
}

PyObject* at_end_of_call;  // see set_at_end_of_call; null for None

void run_at_end_of_call() {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    notify(at_end_of_call);
    PyErr_Restore(type, value, traceback);
}

PyObject* py_set_on_line_tracer(PyObject*, PyObject* function) {
    Py_XSETREF(on_line_tracer, Py_NewRef(function));
    Py_RETURN_NONE;
}

PyObject* py_set_at_end_of_call(PyObject*, PyObject* callback) {
    Py_XSETREF(at_end_of_call, callback == Py_None ? nullptr : Py_NewRef(callback));
    Py_RETURN_NONE;
}

PyObject* py_set_with_backend(PyObject*, PyObject* function) {
    Py_XSETREF(with_backend, Py_NewRef(function));
    Py_RETURN_NONE;
}

PyMethodDef dispatch_functions[] = {
    {"set_with_backend", py_set_with_backend, METH_O,
     R"(set_with_backend(function): function(wrapped, backend) returns what runs the calls of a wrapper while
torch.compiler.set_stance forces a backend.)"},
    {"set_on_line_tracer", py_set_on_line_tracer, METH_O,
     R"(set_on_line_tracer(function): function() is called once, before the first call that runs eagerly because a
debugger or coverage tool follows lines.)"},
    {"set_at_end_of_call", py_set_at_end_of_call, METH_O,
     R"(set_at_end_of_call(callback): callback() is called whenever a call of a wrapper ends; None: nothing is.)"},
    {"last_refused", py_last_refused, METH_NOARGS,
     R"(last_refused(): the code object of this thread's last call that the entry compiled for it rejected, else None.
Resets it to None.)"},
    {}};

}  // namespace

PyObject* call_wrapper(PyObject* callable, PyObject* const* args, size_t nargsf, PyObject* names) {
    PyObject* result = call_once(callable, args, nargsf, names);
    while (UNLIKELY(result && Py_IS_TYPE(result, &tail_call_type)))
        result = follow(reinterpret_cast<TailCall*>(result));
    if (UNLIKELY(at_end_of_call != nullptr)) run_at_end_of_call();
    return result;
}

int init_dispatch(PyObject* module) {
    return (empty_tuple = PyTuple_New(0)) ? PyModule_AddFunctions(module, dispatch_functions) : -1;
}

}  // namespace smelt::calls
