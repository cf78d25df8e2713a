#include "calls/entries.h"

#include "calls/thread_state.h"
#include "module.h"
#include "calls/wrapper.h"
#include "guards/guard_tree.h"

#include <memory>

namespace smelt::calls {

CodeState* code_state(PyCodeObject* code) {
    if (CodeState* state = find_code_state(code)) return state;
    auto state = std::make_unique<CodeState>();
    if (set_code_extra(code, extra_index, state.get()) < 0) return nullptr;
    return state.release();
}

namespace {

void release_code_state(void* p) {
    auto* state = static_cast<CodeState*>(p);
    if (!state) return;
    state->table.replace(nullptr);
    delete state;
}

// The entry table of a code object or of one wrapper; null with a TypeError for other objects.
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

// A copy of the table's entries with one more. The creation of a tuple may run other Python code, which may change
// the table.
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
    PyObject *target, *guard, *compiled, *only = Py_None;
    if (!PyArg_ParseTuple(args, "OOO|O:add_entry", &target, &guard, &compiled, &only)) return nullptr;
    if (guard != Py_None && !guards::is_guard_tree(guard))
        return PyErr_Format(PyExc_TypeError, "add_entry: a guard is a GuardTree or None");
    if (compiled != Py_None && !PyCallable_Check(compiled))
        return PyErr_Format(PyExc_TypeError, "add_entry: compiled must be callable or None");
    EntryTable* table = table_of(target);
    PyObject* entry = table ? PyTuple_Pack(3, guard, compiled, only) : nullptr;
    PyObject* fresh = entry ? appended(*table, entry) : nullptr;
    Py_XDECREF(entry);
    if (!fresh) return nullptr;
    table->replace(fresh);
    Py_RETURN_NONE;
}

PyObject* py_entries(PyObject*, PyObject* target) {
    EntryTable* table = table_of(target);
    if (!table) return nullptr;
    PyObject* list = PyList_New(table->count());
    for (Py_ssize_t i = 0; list && i < table->count(); i++) {
        PyObject* pair = PyTuple_GetSlice(PyTuple_GET_ITEM(table->entries, i), 0, 2);
        if (pair)
            PyList_SET_ITEM(list, i, pair);
        else
            Py_CLEAR(list);
    }
    return list;
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

PyMethodDef entries_functions[] = {
    {"add_entry", py_add_entry, METH_VARARGS,
     R"(add_entry(target, guard, compiled, only=None): calls that `guard` accepts run compiled(*slots, inputs).

`target` is a code object or one wrapper, `guard` a GuardTree or None (accepts every call), `inputs` the tuple of tensors
the guard collected. compiled None: such calls run eagerly, and the callback is not asked. `only` is a callable for which
compiled(*slots, inputs) is the one item of the tuple only(inputs): it is called instead, without a Python frame.)"},
    {"entries", py_entries, METH_O, "entries(target): the list of (guard, compiled)."},
    {"count", py_count, METH_O, "count(target): the number of entries."},
    {"clear", py_clear, METH_O, "clear(target): drop all entries and ask the callback again."},
    {"close", py_close, METH_O,
     "close(target): do not ask the callback any more; existing entries still answer."},
    {"is_closed", py_is_closed, METH_O,
     "is_closed(target): whether `close` was called since the last `clear`."},
    {}};

}  // namespace

bool code_extra_round_trips() {
    return code_extra_layout_known(extra_index, new CodeState);
}

int init_entries(PyObject* module) {
    extra_index = request_code_extra(release_code_state);
    if (extra_index < 0) {
        PyErr_SetString(PyExc_ImportError, "smelt: cannot attach data to code objects of this interpreter");
        return -1;
    }
    return PyModule_AddFunctions(module, entries_functions);
}

}  // namespace smelt::calls
