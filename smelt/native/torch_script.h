// Objects of Python as the boxed values of torch's operators: the conversions of TorchScript, which know every type that a
// schema may have. Of no use without `torch_python.h`, and half as much again to compile.
#pragma once
#include "torch_python.h"

#include <torch/csrc/jit/python/pybind_utils.h>

#include <memory>
#include <string>
#include <vector>

namespace smelt {

// A value for an argument of a schema. Where that is a tensor, a number will do.
inline c10::IValue boxed(py::handle value, const c10::Argument& argument) {
    const torch::jit::ToIValueAllowNumbersAsTensors numbers(true);
    return torch::jit::toIValue(value, argument.type(), argument.N());
}

// The operator as a callable of Python, for which numbers do as tensors, too; None if there is none of that name.
inline py::object operator_as_function(const std::string& name, const std::string& overload) {
    auto found = torch::jit::findOperatorFor({name, overload});
    if (!found) return py::none();
    std::vector<std::shared_ptr<torch::jit::Operator>> operators{found};
    return py::cpp_function([operators](const py::args& args, const py::kwargs& kwargs) {
        HANDLE_TH_ERRORS
        torch::jit::ToIValueAllowNumbersAsTensors numbers(true);
        return torch::jit::invokeOperatorFromPython(operators, args, kwargs);
        END_HANDLE_TH_ERRORS_PYBIND
    });
}

}  // namespace smelt
