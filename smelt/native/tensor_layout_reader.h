// Reads a layout from Python: sizes, strides, dtype.
#pragma once
#include <vector>

#include "tensor_layout.h"
#include "torch_python.h"

namespace smelt {

inline Layout layout(py::handle shape, py::handle stride, py::handle dtype) {
    const auto type = as_dtype(dtype.ptr());
    if (!type) throw py::type_error("a torch.dtype is expected");
    Layout l{shape.cast<std::vector<int64_t>>(), stride.cast<std::vector<int64_t>>(), *type};
    if (l.shape.size() != l.stride.size()) throw py::value_error("as many strides as sizes are expected");
    return l;
}

}  // namespace smelt
