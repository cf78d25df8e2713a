// Creation of a `smelt._native.Plan` from C++, for PlanTemplate.
#pragma once
#include <Python.h>

#include <memory>

#include "plan/program.h"

namespace smelt::plan {

// A Plan that runs `program` and owns `keepalive`; null with a Python error.
PyObject* new_plan(std::unique_ptr<Program> program, PyObject* keepalive);

}  // namespace smelt::plan
