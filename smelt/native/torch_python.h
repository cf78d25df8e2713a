// torch's Python objects: tensors, dtypes, devices, layouts, modes; and conversion of errors between C++ and Python.
//
// Used directly: `THPVariable_Check`, `_Unpack`, `_Wrap` (an object owns the tensor; 2.11 stores it in a
// `MaybeOwned`, which `_Unpack` hides), `THPVariableClass`, `THPObjectPtr`, `HANDLE_TH_ERRORS`, `python_error`, and
// pybind11 as `py`.
#pragma once
#include <Python.h>

#include "torch.h"

#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/MemoryFormat.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/python_numbers.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

#include <optional>

namespace smelt {

// The value of a `torch.dtype`, `torch.device`, `torch.layout`; nothing for another object.
inline std::optional<c10::ScalarType> as_dtype(PyObject* x) {
    if (!THPDtype_Check(x)) return {};
    return reinterpret_cast<THPDtype*>(x)->scalar_type;
}

inline std::optional<c10::Device> as_device(PyObject* x) {
    if (!THPDevice_Check(x)) return {};
    return reinterpret_cast<THPDevice*>(x)->device;
}

inline std::optional<c10::Layout> as_layout(PyObject* x) {
    if (!THPLayout_Check(x)) return {};
    return reinterpret_cast<THPLayout*>(x)->layout;
}

inline std::optional<c10::MemoryFormat> as_memory_format(PyObject* x) {
    if (!THPMemoryFormat_Check(x)) return {};
    return reinterpret_cast<THPMemoryFormat*>(x)->memory_format;
}

inline py::object dtype_object(c10::ScalarType dtype) {
    return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPDtype(dtype)));
}

inline py::object layout_object(c10::Layout layout) {
    return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPLayout(layout)));
}

inline py::object memory_format_object(c10::MemoryFormat format) {
    return py::reinterpret_borrow<py::object>(torch::utils::getTHPMemoryFormat(format));
}

// The dictionaries of a tensor's hooks, which remain when the last hook is removed; null if it never had one.
inline PyObject* backward_hooks(PyObject* tensor) {
    return reinterpret_cast<THPVariable*>(tensor)->backward_hooks;
}
inline PyObject* post_accumulate_grad_hooks(PyObject* tensor) {
    return reinterpret_cast<THPVariable*>(tensor)->post_accumulate_grad_hooks;
}

// The torch-function mode at this index of the thread's mode stack, borrowed.
inline PyObject* function_mode(int64_t index) {
    return at::impl::PythonTorchFunctionTLS::get_stack_at(index)->ptr(getPyInterpreter());
}

}  // namespace smelt
