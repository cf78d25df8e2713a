// What `smelt._native.PlanTemplate` makes of programs.
#pragma once
#include <Python.h>

#include <memory>

#include "plan/program.h"

namespace smelt::plan {

// A Plan that runs `program` and keeps `keepalive`; null with a Python error.
PyObject* new_plan(std::unique_ptr<Program> program, PyObject* keepalive);

}  // namespace smelt::plan
