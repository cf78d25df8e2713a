// The table of check kinds by name: one row per guard kind in smelt/guards/guard.py.
#include "guards/guard_checks.h"

#include "guards/checks/check_makers.h"
#include "guards/kind_table.h"

namespace smelt::guards {

namespace {

constexpr CheckKind kChecks[] = {
    {"type", make_type},
    {"id", make_id},
    {"eq", make_eq},
    {"number", make_number},
    {"expression", make_expression},
    {"tensor", make_tensor},
    {"len", make_len},
    {"keys", make_keys},
    {"table", make_table},
    {"contains", make_contains},
    {"not_in_dict", make_not_in_dict},
    {"no_attr", make_no_attr},
    {"slot", make_slot},
    {"no_hooks", make_no_hooks},
    {"type_version", make_type_version},
    {"function", make_function},
    {"alias", make_alias},
    {"distinct", make_distinct},
    {"plain_leaf", make_plain_leaf},
    {"how_written", make_how_written},
    {"no_overlap", make_no_overlap},
    {"global_state", make_global_state},
};

}  // namespace

const CheckKind* find_check(PyObject* name) {
    return find_row(kChecks, name, "guard kind");
}

CheckPtr wrong_value(const char* kind, const char* expected, PyObject* value) {
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_TypeError, "GuardTree: %s needs %s, not %R", kind, expected, value);
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
