// Shape functions of ATen operators: torch's own C++ functions, registered as `smelt_shape::add.Tensor` and so on.
//
// One C++ function computes the result of a structured operator (sizes, strides, dtype) for all devices; for meta
// tensors it is `at::meta::add`. torch registers slower Python functions over most of these, and the first one that
// runs imports torch's own compiler and sympy, which takes a second. This file registers the C++ functions again,
// with the operators' schemas, under another namespace. `smelt/tracing/fake/meta_results.py` tries these first.
//
// `shape_function(name, overload)` returns one of them as a Python callable for meta tensors, or None.
#include <ATen/MetaFunctions.h>
#include <ATen/Operators.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/empty_like_native.h>
#include <ATen/ops/result_type.h>
#include <torch/library.h>

#include <string>

#include "module.h"
#include "torch_script.h"

namespace smelt {
namespace {

// clang-format off
// With an in-place variant.
#define POINTWISE(X) \
    X(acos) X(acosh) X(addcdiv) X(addcmul) X(asin) X(asinh) X(atan) X(atan2) X(atanh) X(bitwise_not) X(ceil) \
    X(clamp) X(clamp_max) X(clamp_min) X(cos) X(cosh) X(elu) X(erf) X(erfc) X(erfinv) X(exp) X(exp2) \
    X(expm1) X(floor) X(frac) X(gcd) X(gelu) X(hardsigmoid) X(heaviside) X(hypot) X(i0) X(lcm) X(leaky_relu) \
    X(lgamma) X(log) X(log10) X(log1p) X(log2) X(mish) X(neg) X(nextafter) X(reciprocal) X(round) X(rsqrt) \
    X(sgn) X(sigmoid) X(sign) X(silu) X(sin) X(sinc) X(sinh) X(sqrt) X(tan) X(tanh) X(threshold) X(trunc)

#define POINTWISE_OVERLOADS(X) \
    X(add, Tensor) X(bitwise_and, Tensor) X(bitwise_left_shift, Tensor) X(bitwise_or, Tensor) \
    X(bitwise_right_shift, Tensor) X(bitwise_xor, Tensor) X(clamp, Tensor) X(clamp_max, Tensor) \
    X(clamp_min, Tensor) X(copysign, Tensor) X(div, Tensor) X(div, Tensor_mode) X(eq, Scalar) X(eq, Tensor) \
    X(fmod, Tensor) X(ge, Scalar) X(ge, Tensor) X(gt, Scalar) X(gt, Tensor) X(le, Scalar) X(le, Tensor) \
    X(lerp, Scalar) X(lerp, Tensor) X(lt, Scalar) X(lt, Tensor) X(mul, Tensor) X(ne, Scalar) X(ne, Tensor) \
    X(pow, Scalar) X(remainder, Tensor) X(round, decimals) X(sub, Tensor) X(xlogy, Tensor)

// Without an in-place variant.
#define POINTWISE_ALONE(X) \
    X(fmax) X(fmin) X(hardshrink) X(isneginf) X(isposinf) X(logaddexp) \
    X(logaddexp2) X(maximum) X(minimum) X(mse_loss) X(signbit) X(smooth_l1_loss) X(softplus) \
    X(softshrink) X(special_entr) X(special_erfcx) X(special_i0e) X(special_i1) X(special_i1e) \
    X(special_log_ndtr) X(special_xlog1py) X(zero_)

#define POINTWISE_ALONE_OVERLOADS(X) \
    X(fill_, Scalar) X(fill_, Tensor) X(isin, Scalar_Tensor) X(isin, Tensor_Scalar) \
    X(isin, Tensor_Tensor) X(pow, Tensor_Scalar) \
    X(pow, Tensor_Tensor) X(pow_, Tensor)

#define REDUCTIONS(X) \
    X(_log_softmax) X(_softmax) X(all) X(amax) X(amin) X(aminmax) X(any) X(argmax) X(argmin) X(cumprod) \
    X(cumprod_) X(cumsum) X(cumsum_)

#define REDUCTION_OVERLOADS(X) \
    X(all, dim) X(any, dim) X(max, dim) X(mean, dim) X(min, dim) X(prod, dim_int) X(sum, dim_IntList)

#define PRODUCTS_AND_POOLS(X) \
    X(adaptive_max_pool2d) X(adaptive_max_pool3d) X(addmm) X(addmm_) X(addmv) X(addmv_) X(avg_pool2d) \
    X(avg_pool3d) X(baddbmm) X(baddbmm_) X(bmm) X(max_pool2d_with_indices) X(mm)

#define MOVES(X) \
    X(cat) X(gather) X(glu) X(index_add) X(index_add_) X(index_copy) X(index_copy_) X(index_reduce) \
    X(index_reduce_) X(scatter_add) X(scatter_add_)

#define MOVE_OVERLOADS(X) \
    X(index, Tensor) X(scatter, reduce) X(scatter, src) \
    X(scatter, value) X(scatter, value_reduce) X(scatter_, reduce) X(scatter_, src) X(scatter_, value) \
    X(scatter_, value_reduce) X(scatter_reduce, two) X(scatter_reduce_, two) X(sort, stable)

// These accept symbolic sizes.
#define SYMBOLIC(X) \
    X(_upsample_nearest_exact1d) X(_upsample_nearest_exact2d) X(_upsample_nearest_exact3d) \
    X(nll_loss_forward) X(reflection_pad1d) X(reflection_pad3d) X(replication_pad1d) X(replication_pad2d) \
    X(replication_pad3d) X(topk) X(tril) X(tril_) X(triu) X(triu_) X(upsample_bicubic2d) \
    X(upsample_bilinear2d) X(upsample_linear1d) X(upsample_nearest1d) X(upsample_nearest2d) \
    X(upsample_nearest3d) X(upsample_trilinear3d)
// clang-format on

// Registers `function` as the shape function of `Operator`. The operator's C++ type identifies the overload.
template <class Operator>
void shape(torch::Library& library, typename Operator::schema* function) {
    std::string name = std::string(Operator::name).substr(sizeof("aten::") - 1);
    if (*Operator::overload_name) name += std::string(".") + Operator::overload_name;
    library.def(Operator::schema_str);
    library.impl(name.c_str(), torch::dispatch(c10::DispatchKey::Meta, function));
}

// ---- operators that are not structured: the layouts that their CPU kernels ask TensorIterator for

at::Tensor unary(const at::Tensor& self) {
    at::Tensor out;
    return at::TensorIterator::unary_op(out, self).output();
}

at::Tensor& unary_inplace(at::Tensor& self) {
    at::TensorIterator::unary_op(self, self);
    return self;
}

// Not `at::empty_like`, which a Python function overrides.
at::Tensor like(const at::Tensor& self, std::optional<at::ScalarType> dtype = {}) {
    return at::native::empty_like(self, dtype, {}, {}, {}, {});
}

at::Tensor abs(const at::Tensor& self) {
    return self.is_complex() ? like(self, c10::toRealValueType(self.scalar_type())) : unary(self);
}

at::Tensor where(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other) {
    TORCH_CHECK(condition.scalar_type() == at::kBool || condition.scalar_type() == at::kByte,
                "where expected condition to be a boolean tensor");
    auto dtype = at::result_type(self, other);
    auto convert = [&](const at::Tensor& t) { return t.scalar_type() == dtype ? t : t.to(dtype); };
    at::Tensor out, a = convert(self), b = convert(other);
    auto iterator = at::TensorIteratorConfig()
                        .check_all_same_dtype(false)
                        .declare_static_dtype_and_device(dtype, at::kMeta)
                        .add_output(out)
                        .add_const_input(condition)
                        .add_const_input(a)
                        .add_const_input(b)
                        .build();
    return iterator.output();
}

at::Tensor logical_not(const at::Tensor& self) {
    at::Tensor out;
    return at::TensorIteratorConfig()
        .check_all_same_dtype(false)
        .declare_static_dtype_and_device(at::kBool, at::kMeta)
        .add_output(out)
        .add_const_input(self)
        .build()
        .output();
}

at::Tensor hardtanh(const at::Tensor& self, const at::Scalar&, const at::Scalar&) {
    return like(self);
}

at::Tensor& hardtanh_(at::Tensor& self, const at::Scalar&, const at::Scalar&) {
    return self;
}

py::object shape_function(const std::string& name, const std::string& overload) {
    return operator_as_function("smelt_shape::" + name, overload);
}

}  // namespace

int init_shape_functions(PyObject* module) {
    try {
        py::reinterpret_borrow<py::module_>(module).def("shape_function", &shape_function);
        return 0;
    } catch (py::error_already_set& error) {
        error.restore();
        return -1;
    }
}

TORCH_LIBRARY(smelt_shape, library) {
#define X(name) shape<at::_ops::name>(library, at::meta::name);
    POINTWISE(X)
    POINTWISE_ALONE(X)
    REDUCTIONS(X)
    PRODUCTS_AND_POOLS(X)
    MOVES(X)
#undef X
#define X(name) shape<at::_ops::name##_>(library, at::meta::name##_);
    POINTWISE(X)
#undef X
#define X(name, overload) shape<at::_ops::name##_##overload>(library, at::meta::name);
    POINTWISE_OVERLOADS(X)
    POINTWISE_ALONE_OVERLOADS(X)
    REDUCTION_OVERLOADS(X)
    MOVE_OVERLOADS(X)
#undef X
#define X(name, overload) shape<at::_ops::name##__##overload>(library, at::meta::name##_);
    POINTWISE_OVERLOADS(X)
#undef X
#define X(name) shape<at::_ops::name>(library, at::meta::name##_symint);
    SYMBOLIC(X)
#undef X
    shape<at::_ops::abs>(library, abs);
    shape<at::_ops::abs_>(library, unary_inplace);
    shape<at::_ops::hardswish>(library, unary);
    shape<at::_ops::hardswish_>(library, unary_inplace);
    shape<at::_ops::hardtanh>(library, hardtanh);
    shape<at::_ops::hardtanh_>(library, hardtanh_);
    shape<at::_ops::isnan>(library, [](const at::Tensor& self) { return at::meta::ne(self, self); });
    shape<at::_ops::logical_not>(library, logical_not);
    shape<at::_ops::relu>(library, [](const at::Tensor& self) { return at::meta::clamp_min(self, 0); });
    shape<at::_ops::relu_>(library,
                           [](at::Tensor& self) -> at::Tensor& { return at::meta::clamp_min_(self, 0); });
    shape<at::_ops::where_self>(library, where);
    // Reductions over all dimensions.
    shape<at::_ops::max>(library, [](const at::Tensor& self) { return at::meta::amax(self); });
    shape<at::_ops::min>(library, [](const at::Tensor& self) { return at::meta::amin(self); });
    shape<at::_ops::mean>(library, [](const at::Tensor& self, std::optional<at::ScalarType> dtype) {
        return at::meta::mean(self, at::IntArrayRef{}, false, dtype);
    });
    shape<at::_ops::sum>(library, [](const at::Tensor& self, std::optional<at::ScalarType> dtype) {
        return at::meta::sum(self, at::IntArrayRef{}, false, dtype);
    });
}

}  // namespace smelt
