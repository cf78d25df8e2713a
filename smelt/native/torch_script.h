// Conversions of Python objects to boxed values for torch's operators: those of TorchScript, which support every
// schema type. Includes `torch_python.h`, and adds half of its compile time.
#pragma once
#include "torch_python.h"

#include <torch/csrc/jit/python/pybind_utils.h>

#include <memory>
#include <string>
#include <vector>

namespace smelt {

// An object, such as a generator, as the boxed value that TorchScript infers.
inline c10::IValue boxed_object(py::handle object) {
    return torch::jit::toIValue(object, c10::AnyType::get());
}

// The operator as a Python callable, which accepts numbers as tensors, too; None if there is no operator of that
// name.
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
