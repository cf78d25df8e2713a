// The factories of the checks, by the file that defines them. They return null with a Python error.
#pragma once
#include "guards/guard_checks.h"

namespace smelt::guards {

// identity.cpp
CheckPtr make_type(PyObject* value, Building& building);
CheckPtr make_id(PyObject* value, Building& building);
CheckPtr make_alias(PyObject* value, Building& building);
CheckPtr make_distinct(PyObject* value, Building& building);
CheckPtr make_type_version(PyObject* value, Building& building);
CheckPtr make_function(PyObject* value, Building& building);

// values.cpp
CheckPtr make_eq(PyObject* value, Building& building);
CheckPtr make_number(PyObject* value, Building& building);

// expression.cpp
CheckPtr make_expression(PyObject* value, Building& building);

// containers.cpp
CheckPtr make_len(PyObject* value, Building& building);
CheckPtr make_keys(PyObject* value, Building& building);
CheckPtr make_table(PyObject* value, Building& building);
CheckPtr make_contains(PyObject* value, Building& building);

// attributes.cpp
CheckPtr make_not_in_dict(PyObject* value, Building& building);
CheckPtr make_no_attr(PyObject* value, Building& building);
CheckPtr make_slot(PyObject* value, Building& building);
CheckPtr make_no_hooks(PyObject* value, Building& building);

// tensors.cpp
CheckPtr make_tensor(PyObject* value, Building& building);
CheckPtr make_plain_leaf(PyObject* value, Building& building);
CheckPtr make_how_written(PyObject* value, Building& building);
CheckPtr make_no_overlap(PyObject* value, Building& building);

// global_state.cpp
CheckPtr make_global_state(PyObject* value, Building& building);

}  // namespace smelt::guards
