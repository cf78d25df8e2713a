// How the guard tree gets from an object to the next: one class per kind of step in smelt/guards/origin.py.
//
// No accessor runs user code or raises: what cannot be read is missing.
#pragma once
#include "cpython.h"

#include "guards/stamps.h"

#include <torch/csrc/autograd/python_variable.h>

#include <memory>
#include <vector>

namespace smelt {

inline PyTypeObject* deque_type;        // collections.deque
inline PyTypeObject* tuplegetter_type;  // a field of a named tuple; a heap type since 3.12

struct ModuleNames {  // the dictionaries of an nn.Module, and a special method
    PyObject *parameters, *buffers, *modules;
    PyObject *forward_hooks, *forward_pre_hooks, *backward_hooks, *backward_pre_hooks;
    PyObject* eq;
};
inline ModuleNames names;

inline Py_hash_t name_hash(PyObject* name) {
    return reinterpret_cast<PyASCIIObject*>(name)->hash;
}

// A name, and where it was found last.
struct Name {
    PyObject* name;
    Hint hint = 0;

    PyObject* in_dict(PyObject* dict) { return dict_get_name(dict, name, name_hash(name), &hint); }
    PyObject* in_instance(PyObject* x) { return instance_get_name(x, name, name_hash(name), &hint); }
};

// Whether comparing with `key` runs no Python code of its class; tuples and frozensets item by item. A tensor's hash is
// its address, so that a dictionary which holds another object of that hash is no case.
inline bool compares_natively(PyObject* key) {
    if (THPVariable_CheckExact(key)) return true;
    if (PyTuple_Check(key)) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key); i++)
            if (!compares_natively(PyTuple_GET_ITEM(key, i))) return false;
    }
    if (PyFrozenSet_Check(key)) {
        PyObject* item;
        Py_hash_t hash;
        for (Py_ssize_t at = 0; _PySet_NextEntry(key, &at, &item, &hash);)
            if (!compares_natively(item)) return false;
    }
    PyObject* equal = _PyType_Lookup(Py_TYPE(key), names.eq);
    return equal && !PyFunction_Check(equal);
}

// Whether a set has a key of this hash, by identity or by the comparison of C types.
inline bool set_contains(PyObject* set, PyObject* key, Py_hash_t hash) {
    PyObject* item;
    Py_hash_t found;
    for (Py_ssize_t at = 0; _PySet_NextEntry(set, &at, &item, &found);) {
        if (item == key) return true;
        if (found != hash || PyType_HasFeature(Py_TYPE(item), Py_TPFLAGS_HEAPTYPE) ||
            PyType_HasFeature(Py_TYPE(key), Py_TPFLAGS_HEAPTYPE))
            continue;
        int same = PyObject_RichCompareBool(item, key, Py_EQ);
        if (same < 0) PyErr_Clear();
        if (same > 0) return true;
    }
    return false;
}

// Whether a dictionary lacks (or has) a key, asked again only after the dictionary changed. The key is hashed once.
struct Membership {
    PyObject* key;
    bool wanted;
    Py_hash_t hash;
    uint64_t version = 0;

    Membership(PyObject* key, bool wanted) : key(key), wanted(wanted), hash(PyObject_Hash(key)) {}

    bool holds(PyObject* dict) {
        if (dict_version(dict) == version) return true;
        bool found = _PyDict_GetItem_KnownHash(dict, key, hash);
        if (!found) PyErr_Clear();
        if (found != wanted) return false;
        version = dict_version(dict);
        return true;
    }
};

// One pass over the tree.
struct Pass {
    PyObject* const* slots;
    Py_ssize_t slot_count;
    PyObject** values;  // by node
    std::vector<PyObject*> kept{};

    Pass(PyObject* const* slots, Py_ssize_t slot_count, PyObject** values)
        : slots(slots), slot_count(slot_count), values(values) {}
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;
    ~Pass() {
        for (PyObject* x : kept) Py_DECREF(x);
    }

    PyObject* keep(PyObject* fresh) {
        if (fresh)
            kept.push_back(fresh);
        else
            PyErr_Clear();
        return fresh;
    }
};

// References that the tree owns; accessors and checks borrow them.
using Held = std::vector<PyObject*>;

inline PyObject* hold(Held& held, PyObject* x) {
    held.push_back(Py_NewRef(x));
    return x;
}

inline PyObject* hold_name(Held& held, PyObject* x) {  // null with a Python error
    if (!PyUnicode_CheckExact(x)) {
        PyErr_Format(PyExc_TypeError, "GuardTree: expected a name, not %R", x);
        return nullptr;
    }
    Py_INCREF(x);
    PyUnicode_InternInPlace(&x);
    if (PyObject_Hash(x) == -1) return nullptr;
    held.push_back(x);
    return x;
}

inline bool init_names() {
    constexpr struct {
        PyObject* ModuleNames::* name;
        const char* text;
    } kNames[] = {{&ModuleNames::parameters, "_parameters"},
                  {&ModuleNames::buffers, "_buffers"},
                  {&ModuleNames::modules, "_modules"},
                  {&ModuleNames::forward_hooks, "_forward_hooks"},
                  {&ModuleNames::forward_pre_hooks, "_forward_pre_hooks"},
                  {&ModuleNames::backward_hooks, "_backward_hooks"},
                  {&ModuleNames::backward_pre_hooks, "_backward_pre_hooks"},
                  {&ModuleNames::eq, "__eq__"}};
    for (auto& row : kNames) {
        PyObject* name = PyUnicode_InternFromString(row.text);
        if (!name || PyObject_Hash(name) == -1) return false;
        names.*row.name = name;
    }
    return true;
}

inline bool init_collections() {
    PyObject* module = PyImport_ImportModule("_collections");
    auto get = [&](const char* name) {
        return module ? reinterpret_cast<PyTypeObject*>(PyObject_GetAttrString(module, name)) : nullptr;
    };
    if ((deque_type = get("deque"))) tuplegetter_type = get("_tuplegetter");
    Py_XDECREF(module);
    return tuplegetter_type;
}

// ---------------------------------------------------------------------------------------------- accessors

// Reads an object; null if there is none.
struct Accessor {
    virtual ~Accessor() = default;
    virtual PyObject* read(PyObject* base, Pass& pass) = 0;
    // Takes the stamps under which the object just read from `base` would be read again; `same`: from this very object,
    // or else from any at its address. False: there are none.
    virtual bool stamp(PyObject* /*base*/, Stamps&, bool /*same*/) { return false; }
};

struct Argument : Accessor {
    Py_ssize_t slot;
    explicit Argument(Py_ssize_t slot) : slot(slot) {}
    PyObject* read(PyObject*, Pass& pass) override {
        return slot < pass.slot_count ? pass.slots[slot] : nullptr;
    }
};

struct Constant : Accessor {
    PyObject* value;
    explicit Constant(PyObject* value) : value(value) {}
    PyObject* read(PyObject*, Pass&) override { return value; }
    bool stamp(PyObject*, Stamps&, bool) override { return true; }
};

struct Attribute : Accessor {
    Name name;
    explicit Attribute(PyObject* name) : name{name} {}
    PyObject* read(PyObject* base, Pass&) override {
        if (!PyType_Check(base)) return name.in_instance(base);
        PyObject* dict = type_dict(base);
        return dict ? name.in_dict(dict) : nullptr;
    }
    bool stamp(PyObject* base, Stamps& stamps, bool) override { return stamps.take_attributes(base); }
};

// Whether reading an attribute that the class `type` resolves to `found` would run Python code.
inline bool runs_python(PyObject* found) {
    if (!found) return false;
    PyTypeObject* type = Py_TYPE(found);
    if (!type->tp_descr_get || type == tuplegetter_type) return false;
    return PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) || type == &PyProperty_Type;
}

struct Member : Accessor {
    PyObject* name;
    explicit Member(PyObject* name) : name(name) {}
    PyObject* read(PyObject* base, Pass& pass) override {
        if (runs_python(_PyType_Lookup(Py_TYPE(base), name))) return nullptr;
        if (!PyType_Check(base)) return pass.keep(PyObject_GenericGetAttr(base, name));
        if (runs_python(_PyType_Lookup(reinterpret_cast<PyTypeObject*>(base), name))) return nullptr;
        return pass.keep(PyType_Type.tp_getattro(base, name));
    }
};

// As an attribute of an nn.Module is read: the instance's own dictionary, then parameters, buffers, modules; the
// one that had the name is asked first, after a look that those before it do not have it now.
struct ModuleParameter : Accessor {
    PyObject* name;
    Name own;
    Membership own_absent;
    Name dicts[3];
    Name keys[3];
    Membership absent[2];
    int which = 0;

    explicit ModuleParameter(PyObject* name)
        : name(name),
          own{name},
          own_absent{name, false},
          dicts{{names.parameters}, {names.buffers}, {names.modules}},
          keys{{name}, {name}, {name}},
          absent{{name, false}, {name, false}} {}

    PyObject* read(PyObject* base, Pass&) override {
        PyObject* all = instance_attributes(base).dict;
        if (!all || !own_absent.holds(all))
            if (PyObject* value = own.in_instance(base)) return value;
        for (int i = 0; i < which; i++) {
            PyObject* dict = dicts[i].in_instance(base);
            if (!dict || !PyDict_Check(dict)) return nullptr;
            if (PyDict_GET_SIZE(dict) && !absent[i].holds(dict)) which = i;
        }
        for (int i = which; i < 3; i++) {
            PyObject* dict = dicts[i].in_instance(base);
            if (!dict || !PyDict_Check(dict)) return nullptr;
            PyObject* value = keys[i].in_dict(dict);
            if (!value) continue;
            which = i;
            return value;
        }
        which = 0;
        return nullptr;
    }

    bool stamp(PyObject* base, Stamps& stamps, bool) override {
        PyObject* all = instance_attributes(base).dict;
        if (!all || !stamps.take_instance(base)) return false;
        if (own.in_dict(all)) return true;
        for (int i = 0; i <= which; i++) {
            PyObject* dict = dicts[i].in_dict(all);
            if (!dict || !PyDict_Check(dict) || !stamps.take_dict(dict)) return false;
        }
        return true;
    }
};

inline PyObject* at_index(PyObject* const* items, Py_ssize_t size, Py_ssize_t index) {
    if (index < 0) index += size;
    return index >= 0 && index < size ? items[index] : nullptr;
}

struct Item : Accessor {
    PyObject* key;
    Py_hash_t hash;
    Name name;             // key, if it is a string
    Py_ssize_t index = 0;  // key, if it is an integer
    bool is_index;

    Item(PyObject* key, Py_hash_t hash)
        : key(key), hash(hash), name{PyUnicode_CheckExact(key) ? key : nullptr} {
        is_index = PyLong_Check(key);
        if (is_index) index = PyLong_AsSsize_t(key);
        if (PyErr_Occurred()) {
            PyErr_Clear();
            is_index = false;
        }
    }

    PyObject* read(PyObject* base, Pass& pass) override {
        if (PyDict_Check(base)) {
            if (name.name) return name.in_dict(base);
            PyObject* value = _PyDict_GetItem_KnownHash(base, key, hash);
            if (!value) PyErr_Clear();
            return value;
        }
        if (is_index && PyList_Check(base))
            return at_index(reinterpret_cast<PyListObject*>(base)->ob_item, PyList_GET_SIZE(base), index);
        if (is_index && PyTuple_Check(base))
            return at_index(reinterpret_cast<PyTupleObject*>(base)->ob_item, PyTuple_GET_SIZE(base), index);
        if (is_index && PyObject_TypeCheck(base, deque_type)) return pass.keep(deque_item(base));
        if (PyType_HasFeature(Py_TYPE(base), Py_TPFLAGS_HEAPTYPE)) return nullptr;
        return pass.keep(PyObject_GetItem(base, key));
    }

    bool stamp(PyObject* base, Stamps& stamps, bool same) override {
        return PyDict_Check(base) ? stamps.take_dict(base) : same && is_index && PyTuple_Check(base);
    }

    PyObject* deque_item(PyObject* base) const {
        return deque_type->tp_as_sequence->sq_item(base, index < 0 ? index + Py_SIZE(base) : index);
    }
};

struct Cell : Accessor {
    Py_ssize_t index;
    explicit Cell(Py_ssize_t index) : index(index) {}
    PyObject* read(PyObject* base, Pass&) override {
        if (!PyFunction_Check(base)) return nullptr;
        PyObject* closure = PyFunction_GET_CLOSURE(base);
        if (!closure || index < 0 || index >= PyTuple_GET_SIZE(closure)) return nullptr;
        PyObject* cell = PyTuple_GET_ITEM(closure, index);
        return PyCell_Check(cell) ? PyCell_GET(cell) : nullptr;
    }
};

struct Default : Accessor {
    Py_ssize_t index;
    explicit Default(Py_ssize_t index) : index(index) {}
    PyObject* read(PyObject* base, Pass&) override {
        PyObject* defaults = PyFunction_Check(base) ? PyFunction_GET_DEFAULTS(base) : nullptr;
        if (!defaults) return nullptr;
        return at_index(reinterpret_cast<PyTupleObject*>(defaults)->ob_item, PyTuple_GET_SIZE(defaults),
                        index);
    }
};

struct KeywordDefault : Accessor {
    Name name;
    explicit KeywordDefault(PyObject* name) : name{name} {}
    PyObject* read(PyObject* base, Pass&) override {
        PyObject* defaults = PyFunction_Check(base) ? PyFunction_GET_KW_DEFAULTS(base) : nullptr;
        return defaults ? name.in_dict(defaults) : nullptr;
    }
    bool stamp(PyObject* base, Stamps& stamps, bool) override {
        auto* function = reinterpret_cast<PyFunctionObject*>(base);
        return stamps.take(&function->func_kwdefaults) && stamps.take_dict(function->func_kwdefaults);
    }
};

struct TypeOf : Accessor {
    PyObject* read(PyObject* base, Pass&) override { return reinterpret_cast<PyObject*>(Py_TYPE(base)); }
};

struct DictOf : Accessor {
    PyObject* read(PyObject* base, Pass&) override {
        return PyType_Check(base) ? type_dict(base) : instance_dict(base);
    }
    bool stamp(PyObject* base, Stamps& stamps, bool) override { return stamps.take_attributes(base); }
};

struct CallOf : Accessor {
    PyObject* read(PyObject* base, Pass& pass) override { return pass.keep(PyObject_CallNoArgs(base)); }
};

using AccessorPtr = std::unique_ptr<Accessor>;

inline AccessorPtr make_argument(PyObject* key, Held&) {
    Py_ssize_t slot = PyLong_AsSsize_t(key);
    if (slot < 0 && !PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "GuardTree: negative argument slot");
    return slot < 0 ? nullptr : std::make_unique<Argument>(slot);
}

inline AccessorPtr make_constant(PyObject* key, Held& held) {
    return std::make_unique<Constant>(hold(held, key));
}

inline AccessorPtr make_item(PyObject* key, Held& held) {
    Py_hash_t hash = PyObject_Hash(key);
    if (hash == -1) return nullptr;
    if (!compares_natively(key)) {
        PyErr_Format(PyExc_TypeError, "GuardTree: comparing the key %R runs Python code", key);
        return nullptr;
    }
    return std::make_unique<Item>(PyUnicode_CheckExact(key) ? hold_name(held, key) : hold(held, key), hash);
}

template <class Kind>
inline AccessorPtr make_named(PyObject* key, Held& held) {
    PyObject* name = hold_name(held, key);
    return name ? std::make_unique<Kind>(name) : nullptr;
}

template <class Kind>
inline AccessorPtr make_indexed(PyObject* key, Held&) {
    Py_ssize_t index = PyLong_AsSsize_t(key);
    return PyErr_Occurred() ? nullptr : std::make_unique<Kind>(index);
}

template <class Kind>
inline AccessorPtr make_plain(PyObject*, Held&) {
    return std::make_unique<Kind>();
}

constexpr struct {
    const char* name;
    bool is_root;
    AccessorPtr (*make)(PyObject* key, Held& held);
} kAccessors[] = {
    {"arg", true, make_argument},
    {"const", true, make_constant},
    {"attr", false, make_named<Attribute>},
    {"member", false, make_named<Member>},
    {"param", false, make_named<ModuleParameter>},
    {"item", false, make_item},
    {"cell", false, make_indexed<Cell>},
    {"default", false, make_indexed<Default>},
    {"kwdefault", false, make_named<KeywordDefault>},
    {"type", false, make_plain<TypeOf>},
    {"dict", false, make_plain<DictOf>},
    {"call", false, make_plain<CallOf>},
};

}  // namespace smelt
