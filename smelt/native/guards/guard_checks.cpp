// The registered kinds of checks, and helpers of their factories.
#include "guards/guard_checks.h"

namespace smelt::guards {

const CheckKind* CheckKind::find(PyObject* name) {
    for (const CheckKind* kind = first_; kind; kind = kind->next_)
        if (PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, kind->name) == 0) return kind;
    PyErr_Format(PyExc_ValueError, "GuardTree: unknown guard kind %R", name);
    return nullptr;
}

CheckPtr wrong_value(const Building& b, const char* expected, PyObject* value) {
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_TypeError, "GuardTree: %s needs %s, not %R", b.kind, expected, value);
    return nullptr;
}

bool to_node(PyObject* value, const Building& b, int* node) {
    Py_ssize_t index = PyLong_AsSsize_t(value);
    *node = static_cast<int>(index);
    return !PyErr_Occurred() && index >= 0 && index <= b.node;
}

bool to_nodes(PyObject* value, const Building& b, std::vector<int>* nodes) {
    if (!PyTuple_Check(value)) return false;
    nodes->resize(PyTuple_GET_SIZE(value));
    for (size_t i = 0; i < nodes->size(); i++)
        if (!to_node(PyTuple_GET_ITEM(value, i), b, &(*nodes)[i])) return false;
    return true;
}

}  // namespace smelt::guards
