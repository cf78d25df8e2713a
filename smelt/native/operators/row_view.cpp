// `smelt::row_view` returns the row of a table at an index in memory as a view, as eager's `table[index]` does, where
// `aten::index` copies it (`smelt/plan/row_views.py`).
#include <ATen/ATen.h>
#include <torch/library.h>

#include "module.h"

namespace smelt {
namespace {

at::Tensor row_view(const at::Tensor& self, const at::Tensor& index) {
    const int64_t row = index.item<int64_t>(), size = self.size(0);
    TORCH_CHECK_INDEX(-size <= row && row < size, "index ", row,
                      " is out of bounds for dimension 0 with size ", size);
    return self.select(0, row);
}

TORCH_LIBRARY_FRAGMENT(smelt, m) {
    m.def("row_view(Tensor(a) self, Tensor index) -> Tensor(a)");
}

TORCH_LIBRARY_IMPL(smelt, CPU, m) {
    m.impl("row_view", row_view);
}

}  // namespace
}  // namespace smelt
