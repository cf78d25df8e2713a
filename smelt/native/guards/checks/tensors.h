// Checks on tensor metadata that a trace depends on.
#pragma once
#include "guards/guard_checks.h"

#include "torch_autograd.h"

namespace smelt::guards {

// Whether it is a leaf of autograd's graph whose gradients no hook observes: neither a hook of the tensor nor one of
// its gradient accumulator.
bool is_unhooked_leaf(PyObject* x);

// Why autograd refuses an in-place write of `x` that requires grad. 0: it does not; 1: a leaf, 2: a view of a leaf, 3: a
// restricted view (one of several results, created without gradients, or in a custom function). -1: not a tensor.
long write_restriction(PyObject* x);

// The metadata that a trace depends on; guards/tensor_facts.py: TensorFacts. Structurally equal tensors of a tree share one
// object: a pass over a thousand weights must not read a thousand descriptions. A size of ANY is any size from two
// on, ANY_OR_ONE from one on. A stride of ANY is the product of the inner sizes; a stride below ANY refers to another
// dimension (tensor_facts.py: stride_over).
struct TensorFacts {
    static constexpr int64_t ANY = -1, ANY_OR_ONE = -2;

    PyTypeObject* type = nullptr;
    at::ScalarType dtype{};
    at::Device device{at::kCPU};
    at::Layout layout = at::kStrided;
    bool requires_grad = false, conj_neg = false, inference = false;
    std::vector<int64_t> shape, stride;
    bool has_wildcard = false;
    uint64_t known_keys = 0;  // a dispatch key set that was found to match these facts

    bool holds(PyObject* x) {
        if (Py_TYPE(x) != type) return false;
        at::TensorImpl* t = THPVariable_Unpack(x).unsafeGetTensorImpl();
        c10::DispatchKeySet keys = t->key_set();
        if (keys.raw_repr() != known_keys && !agrees(t, keys)) return false;
        return t->dtype() == c10::scalarTypeToTypeMeta(dtype) && t->device() == device && has_sizes(t) &&
               t->requires_grad() == requires_grad && !is_dual(t);
    }

    bool agrees(at::TensorImpl* t, c10::DispatchKeySet keys) {
        using c10::DispatchKey;
        constexpr c10::DispatchKeySet kWrappers = c10::DispatchKeySet(
            {DispatchKey::Python, DispatchKey::Functionalize, DispatchKey::FuncTorchBatched,
             DispatchKey::FuncTorchGradWrapper, DispatchKey::Batched, DispatchKey::ZeroTensor});
        if (THPVariable_CheckTypeExact(type) && keys.has_any(kWrappers)) return false;
        if (t->layout() != layout || t->is_inference() != inference ||
            (t->is_conj() || t->is_neg()) != conj_neg)
            return false;
        if (layout == at::kStrided)
            known_keys = keys.raw_repr();  // the keys alone do not identify other layouts
        return true;
    }

    bool has_sizes(at::TensorImpl* t) const {
        at::IntArrayRef sizes = t->sizes();
        if (!has_wildcard)
            return same(sizes, shape) && (layout != at::kStrided || same(t->strides(), stride));
        return sizes.size() == shape.size() && fits(sizes.data(), t->strides().data());
    }

    // For a strided tensor with the same number of dimensions.
    bool fits(const int64_t* sizes, const int64_t* strides) const {
        int64_t behind = 1;
        for (size_t i = shape.size(); i-- > 0;) {
            if (shape[i] < 0 ? sizes[i] < (shape[i] == ANY ? 2 : 1) : sizes[i] != shape[i]) return false;
            if (stride[i] < ANY ? !is_over(-2 - stride[i], strides[i], sizes, strides)
                                : strides[i] != (stride[i] == ANY ? behind : stride[i]))
                return false;
            behind *= sizes[i];
        }
        return true;
    }

    // `over`: twice the dimension, plus one if the stride must be larger.
    static bool is_over(int64_t over, int64_t stride, const int64_t* sizes, const int64_t* strides) {
        const int64_t room = sizes[over / 2] * strides[over / 2];
        return over % 2 ? stride > room : stride == room;
    }

    // Most shapes have up to four numbers: a call to compare them costs more than the comparison.
    static bool same(at::IntArrayRef a, const std::vector<int64_t>& b) {
        if (a.size() != b.size()) return false;
        for (size_t i = 0; i < b.size(); i++)
            if (a[i] != b[i]) return false;
        return true;
    }
};

// Stores a size in a word of the pass or, as a guard of its own, compares it with that word.
struct SizeRead {
    static constexpr int STORE = -1;

    int dim, word, guard;

    bool holds(const int64_t* sizes, Pass& pass) const {
        if (guard == STORE) pass.words[word] = sizes[dim];
        return pass.words[word] == sizes[dim];
    }
};

struct TensorIs final : Check {
    std::shared_ptr<TensorFacts> facts;
    std::vector<SizeRead> reads;

    bool holds(PyObject* x, Pass& pass) override {
        if (!facts->holds(x)) return false;
        if (reads.empty()) return true;
        const int64_t* sizes = THPVariable_Unpack(x).sizes().data();
        for (const SizeRead& read : reads)
            if (!read.holds(sizes, pass)) return false;
        return true;
    }

    int failed(PyObject* x, Pass& pass) override {
        if (!facts->holds(x)) return guard;
        const int64_t* sizes = THPVariable_Unpack(x).sizes().data();
        for (const SizeRead& read : reads)
            if (!read.holds(sizes, pass)) return read.guard;
        return guard;
    }
};

// A tensor that matched its facts. The next check compares a few memory words, which imply dtype, device, flags and
// dispatch keys; sizes, strides and requires_grad are compared as well.
class TensorMemo {
  public:
    TensorMemo(PyObject* object, TensorFacts* facts)
        : object_(object), impl_(impl_of(object)), word_(TensorImplFields::word(impl_)), facts_(facts) {
        if (facts->layout != at::kStrided || !TensorImplFields::has_own_sizes(impl_)) impl_ = nullptr;
    }

    bool holds() const {
        bool known = impl_of(object_) == impl_ && Py_TYPE(object_) == facts_->type &&
                     TensorImplFields::word(impl_) == word_ &&
                     impl_->key_set().raw_repr() == facts_->known_keys;
        if (!known) return facts_->holds(object_);
        return has_sizes() && requires_grad(impl_) == facts_->requires_grad && !is_dual(impl_);
    }

  private:
    static at::TensorImpl* impl_of(PyObject* x) { return THPVariable_Unpack(x).unsafeGetTensorImpl(); }

    bool has_sizes() const {
        const c10::impl::SizesAndStrides& own = TensorImplFields::sizes(impl_);
        size_t count = facts_->shape.size();
        if (own.size() != count) return false;
        const int64_t *shape = own.sizes_data(), *stride = own.strides_data();
        if (facts_->has_wildcard) return facts_->fits(shape, stride);
        const int64_t *wanted_shape = facts_->shape.data(), *wanted_stride = facts_->stride.data();
        for (size_t i = 0; i < count; i++)
            if (shape[i] != wanted_shape[i] || stride[i] != wanted_stride[i]) return false;
        return true;
    }

    PyObject* object_;
    at::TensorImpl* impl_;  // compared before it is dereferenced; null: always check all facts
    uint64_t word_;
    TensorFacts* facts_;
};

}  // namespace smelt::guards
