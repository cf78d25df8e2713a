#include "bindings/cuda_graphs.h"

#include "torch_python.h"

namespace smelt::plan {
namespace {

std::vector<at::Tensor> tensors(const py::handle& items) {
    std::vector<at::Tensor> found;
    for (py::handle item : py::reinterpret_borrow<py::tuple>(items))
        found.push_back(item.is_none() ? at::Tensor() : THPVariable_Unpack(item.ptr()));
    return found;
}

std::function<void()> called(py::object function) {
    return [function = std::move(function)] {
        const auto done = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(function.ptr()));
        if (!done) throw python_error();
    };
}

}  // namespace

CaptureRun capture_with(PyObject* object) {
    return [function = py::reinterpret_borrow<py::object>(object)](
               const Inputs& inputs, const std::vector<char>& changes) -> std::optional<Capture> {
        py::tuple tensors_of_inputs(inputs.size()), copied(inputs.size());
        for (size_t i = 0; i < inputs.size(); ++i) {
            tensors_of_inputs[i] =
                inputs[i] ? py::reinterpret_steal<py::object>(THPVariable_Wrap(*inputs[i])) : py::none();
            copied[i] = py::bool_(changes[i] != 0);
        }
        const auto made = py::reinterpret_steal<py::object>(
            PyObject_CallFunctionObjArgs(function.ptr(), tensors_of_inputs.ptr(), copied.ptr(), nullptr));
        if (!made) throw python_error();
        if (made.is_none()) return {};
        const py::tuple parts = made;
        return Capture{called(parts[0]), tensors(parts[1]), tensors(parts[2])};
    };
}

}  // namespace smelt::plan
