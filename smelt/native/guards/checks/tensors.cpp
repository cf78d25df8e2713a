#include "guards/checks/tensors.h"

#include "guards/guard_checks.h"

#include <algorithm>

namespace smelt::guards {

namespace {

bool has_entries(PyObject* hooks) {
    return hooks && PyDict_Check(hooks) && PyDict_GET_SIZE(hooks) > 0;
}

struct UnhookedLeaf : Check {
    bool holds(PyObject* x, Pass&) override { return is_unhooked_leaf(x); }
};
const CheckKind unhooked_leaf_kind("unhooked_leaf", make_without_value<UnhookedLeaf>);

struct WriteRestrictionIs : Check {
    long value;
    explicit WriteRestrictionIs(long value) : value(value) {}
    bool holds(PyObject* x, Pass&) override { return write_restriction(x) == value; }

    static CheckPtr make(PyObject* value, Building& b) {
        const long restriction = PyLong_AsLong(value);
        if (restriction < 0) return wrong_value(b, "a result of write_restriction", value);
        return std::make_unique<WriteRestrictionIs>(restriction);
    }
};
const CheckKind write_restriction_kind("write_restriction", WriteRestrictionIs::make);

struct NoOverlap : Check {
    std::vector<int> nodes;
    explicit NoOverlap(std::vector<int> nodes) : nodes(std::move(nodes)) {}

    using Range = std::pair<uintptr_t, uintptr_t>;
    bool holds(PyObject*, Pass& pass) override {
        std::vector<Range> ranges;
        std::vector<const c10::StorageImpl*> storages;
        for (int node : nodes) {
            PyObject* x = pass.values[node];
            if (!THPVariable_Check(x)) {
                if (!add_array(x, ranges)) return false;
                continue;
            }
            const at::Tensor& t = THPVariable_Unpack(x);
            if (!t.has_storage()) return false;
            const c10::StorageImpl* storage = t.storage().unsafeGetStorageImpl();
            storages.push_back(storage);
            auto begin = reinterpret_cast<uintptr_t>(storage->data());
            if (begin && storage->nbytes()) ranges.emplace_back(begin, begin + storage->nbytes());
        }
        return distinct(storages) && disjoint(ranges);
    }

    // Adds the memory of a NumPy array, whose strides are not negative; false for other objects.
    static bool add_array(PyObject* x, std::vector<Range>& ranges) {
        Py_buffer view;
        if (!PyObject_CheckBuffer(x) || PyObject_GetBuffer(x, &view, PyBUF_STRIDED_RO)) {
            PyErr_Clear();
            return false;
        }
        auto begin = reinterpret_cast<uintptr_t>(view.buf);
        uintptr_t end = view.len ? begin + view.itemsize : begin;
        bool is_forward = true;
        for (int d = 0; d < view.ndim && view.len; d++) {
            is_forward &= view.strides[d] >= 0;
            end += (view.shape[d] - 1) * view.strides[d];
        }
        PyBuffer_Release(&view);
        if (end > begin) ranges.emplace_back(begin, end);
        return is_forward;
    }

    static bool distinct(std::vector<const c10::StorageImpl*>& storages) {
        std::sort(storages.begin(), storages.end());
        return std::adjacent_find(storages.begin(), storages.end()) == storages.end();
    }

    static bool disjoint(std::vector<Range>& ranges) {  // two storages may share memory
        std::sort(ranges.begin(), ranges.end());
        return std::adjacent_find(ranges.begin(), ranges.end(),
                                  [](Range a, Range b) { return b.first < a.second; }) == ranges.end();
    }
};
const CheckKind no_overlap_kind("no_overlap", make_about_nodes<NoOverlap>);

struct SharedStorage : Check {
    std::vector<int> nodes;
    explicit SharedStorage(std::vector<int> nodes) : nodes(std::move(nodes)) {}

    bool holds(PyObject*, Pass& pass) override {
        const c10::StorageImpl* first = nullptr;
        for (int node : nodes) {
            PyObject* x = pass.values[node];
            if (!THPVariable_Check(x)) return false;
            const at::Tensor& t = THPVariable_Unpack(x);
            if (!t.has_storage()) return false;
            const c10::StorageImpl* storage = t.storage().unsafeGetStorageImpl();
            if (first && storage != first) return false;
            first = storage;
        }
        return true;
    }
};
const CheckKind shared_storage_kind("shared_storage", make_about_nodes<SharedStorage>);

bool to_int64s(PyObject* sequence, std::vector<int64_t>* out) {
    if (!PyTuple_Check(sequence)) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(sequence); i++) {
        out->push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(sequence, i)));
        if (PyErr_Occurred()) return false;
    }
    return true;
}

// Reads the attributes of a TensorFacts.
class FactsReader {
  public:
    FactsReader(PyObject* facts, OwnedReferences& held) : facts_(facts), held_(held) {}

    PyObject* operator()(const char* name) {  // borrowed from the tree
        PyObject* value = PyObject_GetAttrString(facts_, name);
        if (value) held_.take(value);
        return value;
    }
    bool flag(const char* name, bool* out) {
        PyObject* value = (*this)(name);
        int truth = value ? PyObject_IsTrue(value) : -1;
        *out = truth > 0;
        return truth >= 0;
    }

  private:
    PyObject* facts_;
    OwnedReferences& held_;
};

// All its fields as numbers.
std::vector<int64_t> key_of(const TensorFacts& facts) {
    std::vector<int64_t> key = {reinterpret_cast<intptr_t>(facts.type),
                                static_cast<int64_t>(facts.dtype),
                                static_cast<int64_t>(facts.device.type()),
                                facts.device.index(),
                                static_cast<int64_t>(facts.layout),
                                facts.requires_grad,
                                facts.conj_neg,
                                facts.inference,
                                static_cast<int64_t>(facts.shape.size())};
    key.insert(key.end(), facts.shape.begin(), facts.shape.end());
    key.insert(key.end(), facts.stride.begin(), facts.stride.end());
    return key;
}

// Reads (dimension, word, guard) for each size that is read.
bool to_reads(PyObject* sequence, const TensorFacts& facts, std::vector<bool>& words,
              std::vector<SizeRead>* out) {
    if (!PyTuple_Check(sequence)) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(sequence); i++) {
        SizeRead read;
        if (!PyTuple_Check(PyTuple_GET_ITEM(sequence, i)) ||
            !PyArg_ParseTuple(PyTuple_GET_ITEM(sequence, i), "iii", &read.dim, &read.word, &read.guard))
            return false;
        if (read.dim < 0 || read.dim >= static_cast<int>(facts.shape.size()) || read.word < 0) return false;
        if (read.guard == SizeRead::STORE) {
            words.resize(std::max(words.size(), static_cast<size_t>(read.word) + 1));
            words[read.word] = true;
        }
        if (static_cast<size_t>(read.word) >= words.size() || !words[read.word]) return false;
        out->push_back(read);
    }
    return true;
}

// `value` is a TensorFacts, or a tuple of one and the sizes that are read.
CheckPtr make_tensor(PyObject* value, Building& b) {
    PyObject* reads = nullptr;
    if (PyTuple_Check(value) && PyTuple_GET_SIZE(value) == 2) {
        reads = PyTuple_GET_ITEM(value, 1);
        value = PyTuple_GET_ITEM(value, 0);
    }
    FactsReader read(value, b.held);
    auto facts = std::make_shared<TensorFacts>();
    PyObject *type = read("type"), *dtype = read("dtype"), *device = read("device"), *layout = read("layout");
    PyObject *shape = read("shape"), *stride = read("stride");
    if (PyErr_Occurred()) return nullptr;
    if (!PyType_Check(type) || PyObject_IsSubclass(type, THPVariableClass) != 1 || !as_dtype(dtype) ||
        !as_device(device) || !as_layout(layout) || !to_int64s(shape, &facts->shape) ||
        !to_int64s(stride, &facts->stride) || !read.flag("requires_grad", &facts->requires_grad) ||
        !read.flag("conj_neg", &facts->conj_neg) || !read.flag("inference", &facts->inference))
        return wrong_value(b, "TensorFacts", value);
    facts->type = reinterpret_cast<PyTypeObject*>(type);
    facts->dtype = *as_dtype(dtype);
    facts->device = *as_device(device);
    facts->layout = *as_layout(layout);
    const auto negative = [](int64_t n) { return n < 0; };
    const auto rank = static_cast<int64_t>(facts->shape.size());
    facts->has_wildcard = std::any_of(facts->shape.begin(), facts->shape.end(), negative) ||
                          std::any_of(facts->stride.begin(), facts->stride.end(), negative);
    if (facts->has_wildcard &&
        (facts->layout != at::kStrided || facts->stride.size() != facts->shape.size() ||
         std::any_of(facts->stride.begin(), facts->stride.end(),
                     [&](int64_t n) { return n < -1 - 2 * rank; })))
        return wrong_value(b, "TensorFacts", value);
    auto check = std::make_unique<TensorIs>();
    if (reads && !to_reads(reads, *facts, b.words, &check->reads))
        return wrong_value(b, "sizes that are read", reads);
    check->facts = b.facts.emplace(key_of(*facts), facts).first->second;
    return check;
}
const CheckKind tensor_kind("tensor", make_tensor);

}  // namespace

bool is_unhooked_leaf(PyObject* x) {
    namespace impl = torch::autograd::impl;
    if (!THPVariable_Check(x)) return false;
    const at::Tensor& t = THPVariable_Unpack(x);
    if (impl::grad_fn_unsafe(t) || has_entries(backward_hooks(x)) ||
        has_entries(post_accumulate_grad_hooks(x)))
        return false;
    if (!impl::get_autograd_meta(t)) return true;
    // Python hooks are one C++ hook; there may be others.
    if (impl::hooks(t).size() > (backward_hooks(x) ? 1 : 0)) return false;
    const auto accumulator = impl::try_get_grad_accumulator(t);
    return !accumulator || (accumulator->pre_hooks().empty() && accumulator->post_hooks().empty());
}

long write_restriction(PyObject* x) {
    namespace impl = torch::autograd::impl;
    enum : long { kNoTensor = -1, kFree, kLeaf, kViewOfLeaf, kRestrictedView };
    if (!THPVariable_Check(x)) return kNoTensor;
    const at::Tensor& t = THPVariable_Unpack(x);
    const auto* view = impl::get_view_autograd_meta(t);
    if (view && view->has_bw_view()) {
        if (view->get_creation_meta() != torch::autograd::CreationMeta::DEFAULT) return kRestrictedView;
        const at::Tensor& base = view->get_backward_view().base_;
        return t.requires_grad() && !impl::grad_fn_unsafe(base) ? kViewOfLeaf : kFree;
    }
    return t.requires_grad() && !impl::grad_fn_unsafe(t) ? kLeaf : kFree;
}

}  // namespace smelt::guards
