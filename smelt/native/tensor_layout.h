// The layout of a tensor in memory, as code that takes its address relies on it.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>

#include <string>
#include <vector>

namespace smelt {

struct Layout {
    std::vector<int64_t> shape, stride;
    c10::ScalarType dtype;

    bool describes(const at::Tensor& t) const {
        return t.defined() && t.sizes() == shape && t.scalar_type() == dtype;
    }

    // Strides of dimensions of size 1 do not matter.
    bool has_strides_of(const at::Tensor& t) const {
        if (t.numel() == 0) return true;
        for (size_t d = 0; d < shape.size(); ++d)
            if (shape[d] != 1 && t.stride(static_cast<int64_t>(d)) != stride[d]) return false;
        return true;
    }

    // Copies with these strides, which must not overlap.
    at::Tensor copy_of(const at::Tensor& t) const {
        at::Tensor copy = at::empty_strided(shape, stride, t.options().dtype(dtype));
        copy.copy_(t);
        return copy;
    }
};

inline Layout layout_of(const at::Tensor& t) {
    return {t.sizes().vec(), t.strides().vec(), t.scalar_type()};
}

// Does not use streams: torch may have been built with another compiler.
inline std::string described(at::ScalarType dtype, at::IntArrayRef shape) {
    std::string text = c10::toString(dtype);
    text += "[";
    for (size_t d = 0; d < shape.size(); ++d) text += (d ? ", " : "") + std::to_string(shape[d]);
    return text + "]";
}

}  // namespace smelt
