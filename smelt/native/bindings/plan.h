// `smelt._native.Plan` (plan/plan.h): its creation and its calls from C++.
#pragma once
#include <Python.h>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <memory>
#include <span>
#include <vector>

#include "plan/arena_budget.h"
#include "plan/program.h"

namespace smelt {

// A Plan that runs `program` and owns `keepalive`, the owners of its machine code; null with a Python error.
PyObject* new_plan(std::unique_ptr<const plan::Program> program, PyObject* keepalive);

bool is_plan(PyObject* object);
size_t plan_inputs(PyObject* plan);
size_t plan_outputs(PyObject* plan);
// Whether all steps are kernel launches: no operator of torch or of the program is called.
bool plan_launches_only(PyObject* plan);
// The memory that the plan holds between calls counts in `budget`. Call it before the plan runs.
void set_arena_budget(PyObject* plan, std::shared_ptr<plan::ArenaBudget> budget);
// The input that the plan returns as output `position`; -1 if it returns something else.
int64_t plan_returned_input(PyObject* plan, size_t position);

using Objects = std::span<PyObject* const>;  // borrowed

inline Objects items_of(PyObject* tuple) {
    return {&PyTuple_GET_ITEM(tuple, 0), static_cast<size_t>(PyTuple_GET_SIZE(tuple))};
}

// The instance of a SizeDispatch (plan/size_dispatch.cpp) for the sizes of these inputs, if its forward only launches
// kernels: a new reference; null without an error if there is no such instance.
bool is_size_dispatch(PyObject* object);
PyObject* kernels_only_instance(PyObject* object, Objects inputs);

// Calls a plan with one output; null with a Python error. `inputs`: tensors and numbers, which the caller keeps
// alive.
PyObject* call_plan_of_one(PyObject* plan, Objects inputs);

// An output of a graph. A returned input is the object that was passed; `object` then refers to it (borrowed). None
// is an undefined tensor without an object.
struct Result {
    at::Tensor tensor;
    PyObject* object = nullptr;
    bool is_input = false;
};
using Results = c10::SmallVector<Result, 6>;

// Runs on a tuple of tensors and numbers that outlives the results. Needs the GIL; plans that run long release it
// meanwhile. Throws python_error and what operators throw.
Results run_plan(PyObject* plan, PyObject* inputs);

// Runs on tensors that the plan owns alone, so it frees them after their last use. Numbers are passed as
// `number_tensor`. Works with and without the GIL, and does not change that.
std::vector<at::Tensor> run_plan(PyObject* plan, std::vector<at::Tensor>&& inputs);

// A Python number as the 0-d tensor that torch creates for one: it does not take part in type promotion. Throws
// python_error if it is neither a 64-bit int nor a float.
at::Tensor number_tensor(PyObject* item);

}  // namespace smelt
