#include "guards/checks/dropped.h"

#include "guards/guard_checks.h"
#include "guards/name_lookup.h"
#include "torch_python.h"

#include <cstring>
#include <unordered_set>
#include <vector>

namespace smelt::guards {

namespace {

constexpr size_t most_objects = 500;  // that a check looks at; the others count as silent

bool is_function_of(PyObject* callback, const char* package) {
    if (!PyFunction_Check(callback)) return false;
    PyObject* module = PyFunction_GET_MODULE(callback);
    const char* name = module && PyUnicode_Check(module) ? PyUnicode_AsUTF8(module) : nullptr;
    return name && std::strncmp(name, package, std::strlen(package)) == 0;
}

// Libraries keep tensors and functions, which mostly live on, in weak tables.
bool is_visible(PyObject* callback, PyObject* x) {
    return !is_function_of(callback, "torch.") && !is_function_of(callback, "smelt.") &&
           !(is_function_of(callback, "weakref") && (PyFunction_Check(x) || THPVariable_Check(x)));
}

bool calls_back(PyObject* x) {
    if (!PyType_SUPPORTS_WEAKREFS(Py_TYPE(x))) return false;
    auto* reference = reinterpret_cast<PyWeakReference*>(*PyObject_GET_WEAKREFS_LISTPTR(x));
    for (; reference; reference = reference->wr_next) {
        if (!PyWeakref_CheckRef(reinterpret_cast<PyObject*>(reference))) return true;  // a proxy
        if (reference->wr_callback && is_visible(reference->wr_callback, x)) return true;
    }
    return false;
}

bool is_plain(PyObject* x) {
    return x == Py_None || PyBool_Check(x) || PyLong_CheckExact(x) || PyFloat_CheckExact(x) ||
           PyUnicode_CheckExact(x) || PyBytes_CheckExact(x);
}

// Objects that something else holds.
bool lives_on(PyObject* x) {
    return PyType_Check(x) || PyModule_Check(x) || PyCode_Check(x);
}

// A tensor without attributes and hooks holds no objects; `__del__` is a subclass's.
bool is_bare_tensor(PyObject* x) {
    if (!THPVariable_CheckExact(x) || reinterpret_cast<THPVariable*>(x)->backward_hooks) return false;
    PyObject** attributes = _PyObject_GetDictPtr(x);
    return !attributes || !*attributes || PyDict_GET_SIZE(*attributes) == 0;  // capture's reads make one
}

int add(PyObject* x, void* pending) {
    if (!is_plain(x) && !lives_on(x)) static_cast<std::vector<PyObject*>*>(pending)->push_back(x);
    return 0;
}

bool is_silent(PyObject* value) {
    if (is_plain(value) || lives_on(value)) return true;
    static PyObject* const del = PyUnicode_InternFromString("__del__");
    std::vector<PyObject*> pending{value};
    std::unordered_set<PyObject*> seen;  // of those that hold others
    for (size_t objects = 0; !pending.empty() && objects < most_objects; ++objects) {
        PyObject* x = pending.back();
        pending.pop_back();
        if (calls_back(x)) return false;
        if (is_bare_tensor(x)) continue;
        if (!PyGen_CheckExact(x) && _PyType_Lookup(Py_TYPE(x), del)) return false;
        if (!seen.insert(x).second) continue;
        if (PyFunction_Check(x)) {  // a module has its globals
            for (PyObject* held :
                 {PyFunction_GET_CLOSURE(x), PyFunction_GET_DEFAULTS(x), PyFunction_GET_KW_DEFAULTS(x)})
                if (held) add(held, &pending);
        } else if (PyObject_IS_GC(x) && Py_TYPE(x)->tp_traverse) {
            Py_TYPE(x)->tp_traverse(x, add, &pending);
        }
    }
    return true;
}

}  // namespace

bool to_place(PyObject* kind, Place* place) {
    static const std::pair<const char*, Place> places[] = {
        {"attribute", Place::attribute}, {"slot", Place::slot}, {"key", Place::key},
        {"item", Place::item},           {"cell", Place::cell},
    };
    for (const auto& [name, found] : places) {
        if (PyUnicode_Check(kind) && PyUnicode_CompareWithASCIIString(kind, name) == 0) {
            *place = found;
            return true;
        }
    }
    PyErr_Format(PyExc_ValueError, "drops_silently: unknown place %R", kind);
    return false;
}

bool drops_silently(PyObject* owner, Place place, PyObject* name) {
    PyObject* held = nullptr;
    if (place == Place::attribute) {
        if (PyUnicode_Check(name) && PyObject_Hash(name) != -1) held = Name{name}.in_instance(owner);
    } else if (place == Place::key && PyDict_Check(owner)) {
        held = _PyDict_GetItem_KnownHash(owner, name, PyObject_Hash(name));
    } else if (place == Place::cell && PyCell_Check(owner)) {
        held = PyCell_GET(owner);
    } else if (place == Place::item) {
        const Py_ssize_t i = PyLong_AsSsize_t(name);
        if (PyList_Check(owner) && i >= 0 && i < PyList_GET_SIZE(owner)) held = PyList_GET_ITEM(owner, i);
    } else if (place == Place::slot) {
        PyObject* slot = _PyType_Lookup(Py_TYPE(owner), name);
        if (!slot || Py_TYPE(slot) != &PyMemberDescr_Type) return false;
        held = PyMemberDescr_Type.tp_descr_get(slot, owner, reinterpret_cast<PyObject*>(Py_TYPE(owner)));
        Py_XDECREF(held);  // the slot holds it
    }
    PyErr_Clear();
    return !held || is_silent(held);
}

namespace {

struct DropsSilently : Check {
    Place place;
    PyObject* name;
    DropsSilently(Place place, PyObject* name) : place(place), name(name) {}
    bool holds(PyObject* x, Pass&) override { return drops_silently(x, place, name); }

    static CheckPtr make(PyObject* value, Building& b) {
        Place place;
        if (!PyTuple_Check(value) || PyTuple_GET_SIZE(value) != 2 ||
            !to_place(PyTuple_GET_ITEM(value, 0), &place))
            return wrong_value(b, "a place and its name", value);
        PyObject* name = PyTuple_GET_ITEM(value, 1);
        if (PyObject_Hash(name) == -1) return nullptr;
        if (place == Place::key && !compares_natively(name))
            return wrong_value(b, "a key that is compared without Python code", value);
        return std::make_unique<DropsSilently>(place, hold(b.held, name));
    }
};
const CheckKind drops_silently_kind("drops_silently", DropsSilently::make);

}  // namespace

}  // namespace smelt::guards
