// `smelt._native.ArenaBudget`: a plan::ArenaBudget.
#pragma once
#include <Python.h>

#include <memory>

#include "plan/arena_budget.h"

namespace smelt::plan {

// The budget of an ArenaBudget object; null for another object.
std::shared_ptr<ArenaBudget> budget_of(PyObject* object);

}  // namespace smelt::plan
