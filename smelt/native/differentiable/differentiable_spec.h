// The specification of a Differentiable: that of its nodes, and the Python objects that compile and run its graphs.
#pragma once
#include "cpython.h"

#include <string>
#include <vector>

#include "autograd/node_spec.h"
#include "torch_python.h"

namespace smelt::autograd {

// A backward that is a Plan or another callable.
struct PythonBackward : Backward {
    PythonBackward(Mask mask, Reach reach, std::vector<bool> requested, PyObject* callable,
                   size_t n_gradients);
    ~PythonBackward() override { Py_DECREF(callable); }  // the caller has the GIL

    variable_list run(variable_list&& arguments, const std::vector<bool>& numbers) const override;

    PyObject* const callable;
    const bool is_plan;
    const size_t n_gradients;
};

// Its Python objects are only used with the GIL held.
struct PythonSpec : Spec {
    PyObject* forward = nullptr;
    PyObject* compiler = nullptr;         // of backwards
    PyObject* lock = nullptr;             // held while a backward is compiled
    PyObject* double_backward = nullptr;  // null: none
    PyObject* substitution = nullptr;     // null: none
    bool forward_is_plan = false;
    std::vector<PyObject*> makes;  // of `taken`: the functions that create their tensors

    ~PythonSpec() override;

    const Backward& compile_backward(const Mask& mask, Reach reach,
                                     const std::vector<bool>& requested) override;
    variable_list differentiate_again(const DoubleBackwardInputs& inputs, const variable_list& primals,
                                      const variable_list& through,
                                      const variable_list& tangents) const override;
    at::Tensor substitute(size_t i, const std::vector<bool>& requested) const override;
    at::Tensor converted(at::Tensor t) const override;
};

// Reads the dict that `Differentiable(spec)` got. Throws python_error and what pybind11 throws.
c10::intrusive_ptr<PythonSpec> read_spec(PyObject* dict);

}  // namespace smelt::autograd
