// Checks on values: a constant, or a number of any value.
#include "guards/checks/values.h"

#include "guards/guard_checks.h"

#include <cmath>

namespace smelt::guards {

namespace {

bool same_double(double a, double b) {
    return a == b ? std::signbit(a) == std::signbit(b) : a != a && b != b;  // NaN equals itself
}

bool same_items(PyObject* x, PyObject* value) {
    Py_ssize_t size = PyTuple_GET_SIZE(value);
    if (PyTuple_GET_SIZE(x) != size) return false;
    for (Py_ssize_t i = 0; i < size; i++)
        if (!same_leaf(PyTuple_GET_ITEM(x, i), PyTuple_GET_ITEM(value, i))) return false;
    return true;
}

// Compares in iteration order, which a trace may depend on.
bool same_elements(PyObject* x, PyObject* value) {
    if (PySet_GET_SIZE(x) != PySet_GET_SIZE(value)) return false;
    PyObject *a, *b;
    Py_hash_t hash;
    for (Py_ssize_t i = 0, j = 0;
         _PySet_NextEntry(x, &i, &a, &hash) && _PySet_NextEntry(value, &j, &b, &hash);)
        if (!same_leaf(a, b)) return false;
    return true;
}

bool same_slice(PyObject* x, PyObject* value) {
    auto *a = reinterpret_cast<PySliceObject*>(x), *b = reinterpret_cast<PySliceObject*>(value);
    return same_leaf(a->start, b->start) && same_leaf(a->stop, b->stop) && same_leaf(a->step, b->step);
}

// Equal ranges yield the same numbers, but may have another start, stop or step.
bool same_range(PyObject* x, PyObject* value) {
    for (const char* name : {"start", "stop", "step"}) {
        PyObject* a = PyObject_GetAttrString(x, name);
        PyObject* b = a ? PyObject_GetAttrString(value, name) : nullptr;
        bool same = b && same_leaf(a, b);
        Py_XDECREF(a);
        Py_XDECREF(b);
        if (!same) return PyErr_Clear(), false;
    }
    return true;
}

}  // namespace

bool same_leaf(PyObject* x, PyObject* value) {
    if (x == value) return true;
    PyTypeObject* type = Py_TYPE(x);
    if (type != Py_TYPE(value)) return false;
    if (type == &PyUnicode_Type) return PyUnicode_Compare(x, value) == 0;
    if (type == &PyFloat_Type) return same_double(PyFloat_AS_DOUBLE(x), PyFloat_AS_DOUBLE(value));
    if (type == &PyComplex_Type) {
        Py_complex a = PyComplex_AsCComplex(x), b = PyComplex_AsCComplex(value);
        return same_double(a.real, b.real) && same_double(a.imag, b.imag);
    }
    if (PyTuple_Check(x)) return same_items(x, value);
    if (type == &PySlice_Type) return same_slice(x, value);
    if (type == &PyFrozenSet_Type) return same_elements(x, value);
    if (type == &PyRange_Type) return same_range(x, value);
    if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) return false;
    int same = PyObject_RichCompareBool(x, value, Py_EQ);
    if (same < 0) PyErr_Clear();
    return same > 0;
}

namespace {

bool is_leaf(PyObject* value) {
    if (PyTuple_Check(value)) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); i++)
            if (!is_leaf(PyTuple_GET_ITEM(value, i))) return false;
        return true;
    }
    bool changes = PyList_Check(value) || PyDict_Check(value) || PySet_Check(value);
    return !changes && !PyType_HasFeature(Py_TYPE(value), Py_TPFLAGS_HEAPTYPE);
}

struct Equals : Check {
    PyObject* value;
    explicit Equals(PyObject* value) : value(value) {}
    bool holds(PyObject* x, Pass&) override { return same_leaf(x, value); }
    bool stamp(PyObject*, Stamps&, bool same) override { return same; }

    static CheckPtr make(PyObject* value, Building& b) {
        if (!is_leaf(value)) return wrong_value(b, "a constant (use id for objects)", value);
        return std::make_unique<Equals>(hold(b.held, value));
    }
};
const CheckKind eq_kind("eq", Equals::make);

// A 64-bit int, or a float.
struct NumberIs : Check {
    bool is_float;
    explicit NumberIs(bool is_float) : is_float(is_float) {}
    bool holds(PyObject* x, Pass&) override {
        if (is_float) return PyFloat_CheckExact(x);
        if (!PyLong_CheckExact(x)) return false;
        int overflow;
        PyLong_AsLongLongAndOverflow(x, &overflow);
        return overflow == 0;
    }

    static CheckPtr make(PyObject* value, Building& b) {
        auto* type = reinterpret_cast<PyTypeObject*>(value);
        if (type != &PyLong_Type && type != &PyFloat_Type) return wrong_value(b, "int or float", value);
        return std::make_unique<NumberIs>(type == &PyFloat_Type);
    }
};
const CheckKind number_kind("number", NumberIs::make);

}  // namespace

}  // namespace smelt::guards
