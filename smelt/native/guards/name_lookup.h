// Lookups in dictionaries, sets and attributes of modules without running user code.
//
// Names and keys cache the position where they were found, or that an unchanged dictionary lacks them.
#pragma once
#include "cpython.h"
#include "dict_version.h"

namespace smelt::guards {

inline PyTypeObject* deque_type;        // collections.deque
inline PyTypeObject* tuplegetter_type;  // a field of a named tuple; a heap type since 3.12

struct ModuleNames {  // the dictionaries of an nn.Module, and special names
    PyObject *parameters, *buffers, *modules;
    PyObject *forward_hooks, *forward_pre_hooks, *backward_hooks, *backward_pre_hooks;
    PyObject *eq, *class_, *instancecheck, *getattr, *annotations, *fget;
};
inline ModuleNames names;

inline Py_hash_t name_hash(PyObject* name) {
    return reinterpret_cast<PyASCIIObject*>(name)->hash;
}

// A name, with the position of its last lookup.
struct Name {
    PyObject* name;
    Hint hint = 0;

    PyObject* in_dict(PyObject* dict) { return dict_get_name(dict, name, name_hash(name), &hint); }
    PyObject* in_instance(PyObject* x) { return instance_get_name(x, name, name_hash(name), &hint); }
};

// Whether comparing with `key` runs no Python code of its class; tuples and frozensets are examined item by item. A
// tensor's hash is its address, so no other key of a dictionary has that hash.
bool compares_natively(PyObject* key);

// Whether a set contains a key with this hash, by identity or by the comparison of C types.
bool set_contains(PyObject* set, PyObject* key, Py_hash_t hash);

// Whether a dictionary lacks (or has) a key; repeated only after the dictionary changed. The key is hashed once.
struct Membership {
    PyObject* key;
    bool wanted;
    Py_hash_t hash;
    DictVersion unchanged;

    Membership(PyObject* key, bool wanted) : key(key), wanted(wanted), hash(PyObject_Hash(key)) {}

    bool holds(PyObject* dict) {
        if (unchanged.holds(dict)) return true;
        bool found = _PyDict_GetItem_KnownHash(dict, key, hash);
        if (!found) PyErr_Clear();
        if (found != wanted) return false;
        unchanged.set(dict);
        return true;
    }
};

bool init_lookup();  // false with a Python error

}  // namespace smelt::guards
