#include "cpython_sets.h"

#include "module.h"

namespace smelt {

namespace {

bool is_removed(const setentry& entry) {
    return entry.hash == -1;
}

// Calls `visit(number, slot)` for each used slot; stops and returns false if `visit` does.
template <class Visit>
bool each_slot(const PySetObject* set, Visit visit) {
    Py_ssize_t number = 0;
    for (Py_ssize_t i = 0; i <= set->mask; i++) {
        const setentry& entry = set->table[i];
        if (entry.key && !visit(number++, is_removed(entry) ? -1 - i : i)) return false;
    }
    return true;
}

PySetObject* checked(PyObject* x, const char* function) {
    if (!PyAnySet_Check(x)) PyErr_Format(PyExc_TypeError, "%s: expected a set, not %R", function, x);
    return PyAnySet_Check(x) ? reinterpret_cast<PySetObject*>(x) : nullptr;
}

PyObject* py_set_table(PyObject*, PyObject* x) {
    return checked(x, "set_table") ? set_table(x) : nullptr;
}

// Fills the empty `set`. Returns false, with or without an error, if the table does not match the items.
bool fill(PySetObject* set, PyObject* items, Py_ssize_t mask, Py_ssize_t finger, PyObject* slots) {
    if (mask + 1 > PySet_MINSIZE) {
        auto* entries = static_cast<setentry*>(PyMem_Calloc(mask + 1, sizeof(setentry)));
        if (!entries) return PyErr_NoMemory() && false;
        set->table = entries;
        set->mask = mask;
    }
    Py_ssize_t taken = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(slots); i++) {
        Py_ssize_t at = PyLong_AsSsize_t(PyTuple_GET_ITEM(slots, i));
        if (at == -1 && PyErr_Occurred()) return false;
        bool removed = at < 0;
        if (removed) at = -1 - at;
        if (at > mask || set->table[at].key || (!removed && taken == PyTuple_GET_SIZE(items))) return false;
        PyObject* key = removed ? _PySet_Dummy : PyTuple_GET_ITEM(items, taken++);
        Py_hash_t hash = removed ? -1 : PyObject_Hash(key);
        if (!removed && hash == -1) return false;
        if (!removed) Py_INCREF(key);
        set->table[at] = {key, hash};
        set->fill++;
        set->used += !removed;
    }
    set->finger = finger;
    return taken == PyTuple_GET_SIZE(items);
}

// Whether a lookup finds each item.
bool finds(PyObject* set, PyObject* items) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items); i++)
        if (PySet_Contains(set, PyTuple_GET_ITEM(items, i)) != 1) return false;
    return true;
}

PyObject* py_lay_out(PyObject*, PyObject* args) {
    PyObject *x, *items, *slots;
    Py_ssize_t mask, finger;
    if (!PyArg_ParseTuple(args, "OO!(nnO!):lay_out", &x, &PyTuple_Type, &items, &mask, &finger, &PyTuple_Type,
                          &slots))
        return nullptr;
    PySetObject* set = checked(x, "lay_out");
    if (!set) return nullptr;
    bool has_room =
        mask >= PySet_MINSIZE - 1 && PyTuple_GET_SIZE(slots) <= mask;  // a lookup ends at an unused slot
    if (set->fill || !has_room || (mask & (mask + 1)) || finger < 0)
        return PyErr_Format(PyExc_ValueError, "lay_out: expected an empty set and the table of one");
    bool done = fill(set, items, mask, finger, slots) && finds(x, items);
    if (!done && !PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "lay_out: a table of other elements");
    return done ? Py_NewRef(x) : nullptr;
}

PyObject* py_copy_set(PyObject*, PyObject* const* args, Py_ssize_t count) {
    bool sets = count == 2 && PySet_Check(args[0]) && PySet_Check(args[1]);
    if (!sets || reinterpret_cast<PySetObject*>(args[0])->fill)
        return PyErr_Format(PyExc_TypeError, "copy_set: expected an empty set and a set");
    return copy_set(args[0], args[1]) ? Py_NewRef(Py_None) : nullptr;
}

PyMethodDef set_functions[] = {
    {"copy_set", reinterpret_cast<PyCFunction>(py_copy_set), METH_FASTCALL,
     "copy_set(empty, set): fills a set with the elements of another, in the same slots."},
    {"set_table", py_set_table, METH_O,
     "set_table(x): (size of the set's table - 1, the index at which pop starts, the used slots in order; "
     "-1 - slot for a removed element)."},
    {"lay_out", py_lay_out, METH_VARARGS,
     "lay_out(x, items, table): puts `items`, in order, into the empty set x, so that "
     "set_table(x) == table, and "
     "returns it. Raises ValueError if the items have other hashes; x is then invalid."},
    {}};

}  // namespace

PyObject* set_table(PyObject* x) {
    auto* set = reinterpret_cast<PySetObject*>(x);
    PyObject* slots = PyTuple_New(set->fill);
    if (!slots) return nullptr;
    bool done = each_slot(set, [&](Py_ssize_t number, Py_ssize_t slot) {
        PyObject* value = PyLong_FromSsize_t(slot);
        if (value) PyTuple_SET_ITEM(slots, number, value);
        return value != nullptr;
    });
    if (done) return Py_BuildValue("(nnN)", set->mask, set->finger, slots);
    Py_DECREF(slots);
    return nullptr;
}

bool has_table(PyObject* x, PyObject* table) {
    auto* set = reinterpret_cast<PySetObject*>(x);
    PyObject* slots = PyTuple_GET_ITEM(table, 2);
    if (set->mask != PyLong_AsSsize_t(PyTuple_GET_ITEM(table, 0)) ||
        set->finger != PyLong_AsSsize_t(PyTuple_GET_ITEM(table, 1)) || set->fill != PyTuple_GET_SIZE(slots))
        return false;
    return each_slot(set, [&](Py_ssize_t number, Py_ssize_t slot) {
        return PyLong_AsSsize_t(PyTuple_GET_ITEM(slots, number)) == slot;
    });
}

bool copy_set(PyObject* empty, PyObject* from) {
    auto* made = reinterpret_cast<PySetObject*>(empty);
    auto* set = reinterpret_cast<PySetObject*>(from);
    auto size = static_cast<size_t>(set->mask) + 1;
    if (set->table != set->smalltable) {
        auto* table = static_cast<setentry*>(PyMem_Malloc(size * sizeof(setentry)));
        if (!table) {
            PyErr_NoMemory();
            return false;
        }
        made->table = table;
    }
    for (size_t i = 0; i < size; i++) {
        made->table[i] = set->table[i];
        bool removed = set->table[i].hash == -1;  // the marker of a removed key is not reference counted
        if (!removed) Py_XINCREF(set->table[i].key);
    }
    made->fill = set->fill;
    made->used = set->used;
    made->mask = set->mask;
    made->finger = set->finger;
    return true;
}

int init_sets(PyObject* module) {
    return PyModule_AddFunctions(module, set_functions);
}

}  // namespace smelt
