// Running a `smelt._native.Plan` from C++ (plan/type.cpp).
#pragma once
#include <ATen/core/Tensor.h>
#include <Python.h>
#include <c10/util/SmallVector.h>

#include <span>
#include <vector>

namespace smelt {

bool is_plan(PyObject* object);
size_t plan_inputs(PyObject* plan);
size_t plan_outputs(PyObject* plan);
// Whether its steps are kernels: no operator of torch or of the program is called.
bool plan_launches_only(PyObject* plan);
// Bytes of scratch memory that one call uses; frees what is held between calls.
size_t plan_arena_bytes(PyObject* plan);
void drop_idle_arenas(PyObject* plan);
// The input that the plan returns at this position, -1 if it returns something else there.
int64_t plan_returned_input(PyObject* plan, size_t position);

using Objects = std::span<PyObject* const>;  // borrowed

inline Objects items_of(PyObject* tuple) {
    return {&PyTuple_GET_ITEM(tuple, 0), static_cast<size_t>(PyTuple_GET_SIZE(tuple))};
}

// A graph for any sizes (plan/by_sizes.cpp), and what it has for the sizes of these inputs, if its forward is nothing but
// kernels: a new reference, null without an error where there is no such thing.
bool is_by_sizes(PyObject* object);
PyObject* launching_instance(PyObject* object, Objects inputs);

// What the plan gives, which has one output; null with a Python error. `inputs`: tensors and numbers, which the caller keeps
// alive.
PyObject* call_plan_of_one(PyObject* plan, Objects inputs);

// What a graph returns at one position. An input is returned as the very object that came in, which then is in
// `object` (borrowed). Nothing (None) is an undefined tensor without an object.
struct Result {
    at::Tensor tensor;
    PyObject* object = nullptr;
    bool is_input = false;
};
using Results = c10::SmallVector<Result, 6>;

// On a tuple of tensors and numbers that outlives the results. Needs the GIL; plans that run long release it
// meanwhile. Throws python_error and what operators throw.
Results run_plan(PyObject* plan, PyObject* inputs);

// On tensors that the plan may drop after their last use, as it is their only owner. A number is given as
// `number_tensor`. Works with and without the GIL, which it leaves as it is.
std::vector<at::Tensor> run_plan(PyObject* plan, std::vector<at::Tensor>&& inputs);

// A Python number as the 0-d tensor that torch makes of one: it does not take part in type promotion. Throws
// python_error if it is neither an int of 64 bits nor a float.
at::Tensor number_tensor(PyObject* item);

}  // namespace smelt
