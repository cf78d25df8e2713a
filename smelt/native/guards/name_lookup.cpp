#include "guards/name_lookup.h"

#include "torch_python.h"

namespace smelt::guards {

bool compares_natively(PyObject* key) {
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

bool set_contains(PyObject* set, PyObject* key, Py_hash_t hash) {
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

namespace {

bool init_names() {
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
                  {&ModuleNames::eq, "__eq__"},
                  {&ModuleNames::class_, "__class__"},
                  {&ModuleNames::instancecheck, "__instancecheck__"},
                  {&ModuleNames::getattr, "getattr"},
                  {&ModuleNames::annotations, "__annotations__"},
                  {&ModuleNames::fget, "fget"}};
    for (auto& row : kNames) {
        PyObject* name = PyUnicode_InternFromString(row.text);
        if (!name || PyObject_Hash(name) == -1) return false;
        names.*row.name = name;
    }
    return true;
}

bool init_collections() {
    PyObject* module = PyImport_ImportModule("_collections");
    auto get = [&](const char* name) {
        return module ? reinterpret_cast<PyTypeObject*>(PyObject_GetAttrString(module, name)) : nullptr;
    };
    if ((deque_type = get("deque"))) tuplegetter_type = get("_tuplegetter");
    Py_XDECREF(module);
    return tuplegetter_type;
}

}  // namespace

bool init_lookup() {
    return init_names() && init_collections();
}

}  // namespace smelt::guards
