// The facts that the guard tree checks: one class per guard kind in smelt/guards/guard.py, and how each is
// made.
#pragma once
#include "guards/accessors.h"
#include "guards/global_state.h"

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

namespace smelt {

// ------------------------------------------------------------------------------------------------- checks

// A fact about the object of a node.
struct Check {
    int guard = -1;  // its number among the guards the tree was built from
    virtual ~Check() = default;
    virtual bool holds(PyObject* x, Pass& pass) = 0;
    // Takes the stamps under which what was just found of `x` holds again; `same`: for this very object, or else for
    // any at its address. False: there are none.
    virtual bool stamp(PyObject* /*x*/, Stamps&, bool /*same*/) { return false; }
    // The other nodes of a fact that only says which objects are the same: it holds again while all nodes read the same.
    virtual const std::vector<int>* about() const { return nullptr; }
    // Whether it has shown that the object has the layout of the one that stamps were taken of.
    virtual bool proves_layout() const { return false; }
};

struct TypeIs : Check {
    PyTypeObject* type;
    explicit TypeIs(PyTypeObject* type) : type(type) {}
    bool holds(PyObject* x, Pass&) override { return Py_TYPE(x) == type; }
    bool stamp(PyObject* x, Stamps& stamps, bool same) override { return same && stamps.take_type(x); }
    bool proves_layout() const override { return true; }
};

struct ObjectIs : Check {
    PyObject* value;
    explicit ObjectIs(PyObject* value) : value(value) {}
    bool holds(PyObject* x, Pass&) override { return x == value; }
    bool stamp(PyObject*, Stamps&, bool same) override { return same; }
    bool proves_layout() const override { return true; }
};

struct WeakObjectIs : Check {
    PyObject* address;  // not owned: says something only while the reference lives
    PyObject* reference;
    WeakObjectIs(PyObject* value, PyObject* reference) : address(value), reference(reference) {}
    bool holds(PyObject* x, Pass&) override { return x == address && PyWeakref_GET_OBJECT(reference) == x; }
    bool stamp(PyObject*, Stamps&, bool same) override { return same; }
    bool proves_layout() const override { return true; }
};

inline bool same_double(double a, double b) {
    return a == b ? std::signbit(a) == std::signbit(b) : a != a && b != b;  // NaN equals itself
}

inline bool same_leaf(PyObject* x, PyObject* value);

inline bool same_items(PyObject* x, PyObject* value) {
    Py_ssize_t size = PyTuple_GET_SIZE(value);
    if (PyTuple_GET_SIZE(x) != size) return false;
    for (Py_ssize_t i = 0; i < size; i++)
        if (!same_leaf(PyTuple_GET_ITEM(x, i), PyTuple_GET_ITEM(value, i))) return false;
    return true;
}

// In the same order: what iterating gives is part of what a trace may see of a frozenset.
inline bool same_elements(PyObject* x, PyObject* value) {
    if (PySet_GET_SIZE(x) != PySet_GET_SIZE(value)) return false;
    PyObject *a, *b;
    Py_hash_t hash;
    for (Py_ssize_t i = 0, j = 0;
         _PySet_NextEntry(x, &i, &a, &hash) && _PySet_NextEntry(value, &j, &b, &hash);)
        if (!same_leaf(a, b)) return false;
    return true;
}

inline bool same_slice(PyObject* x, PyObject* value) {
    auto *a = reinterpret_cast<PySliceObject*>(x), *b = reinterpret_cast<PySliceObject*>(value);
    return same_leaf(a->start, b->start) && same_leaf(a->stop, b->stop) && same_leaf(a->step, b->step);
}

// Same type and same value, of constants without user code. Objects of classes written in Python are compared
// by identity.
inline bool same_leaf(PyObject* x, PyObject* value) {
    if (x == value) return true;
    PyTypeObject* type = Py_TYPE(x);
    if (type != Py_TYPE(value)) return false;
    if (type == &PyUnicode_Type) return PyUnicode_Compare(x, value) == 0;
    if (type == &PyFloat_Type) return same_double(PyFloat_AS_DOUBLE(x), PyFloat_AS_DOUBLE(value));
    if (type == &PyComplex_Type) {
        Py_complex a = PyComplex_AsCComplex(x), b = PyComplex_AsCComplex(value);
        return same_double(a.real, b.real) && same_double(a.imag, b.imag);
    }
    if (PyTuple_Check(x)) return same_items(x, value);
    if (type == &PySlice_Type) return same_slice(x, value);
    if (type == &PyFrozenSet_Type) return same_elements(x, value);
    if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) return false;
    int same = PyObject_RichCompareBool(x, value, Py_EQ);
    if (same < 0) PyErr_Clear();
    return same > 0;
}

struct Equals : Check {
    PyObject* value;
    explicit Equals(PyObject* value) : value(value) {}
    bool holds(PyObject* x, Pass&) override { return same_leaf(x, value); }
    bool stamp(PyObject*, Stamps&, bool same) override { return same; }
};

// An int of 64 bits, or a float.
struct NumberIs : Check {
    bool is_float;
    explicit NumberIs(bool is_float) : is_float(is_float) {}
    bool holds(PyObject* x, Pass&) override {
        if (is_float) return PyFloat_CheckExact(x);
        if (!PyLong_CheckExact(x)) return false;
        int overflow;
        PyLong_AsLongLongAndOverflow(x, &overflow);
        return overflow == 0;
    }
};

// What arithmetic on numbers gives: postfix over functions of C, which exact ints and floats keep from running
// user code. What raises is a mismatch.
struct ExpressionGives : Check {
    struct Step {
        int node = -1;               // >= 0: push the number of that node
        PyObject* object = nullptr;  // the constant to push, or the function to call
        int operands = -1;           // of the function
    };
    std::vector<Step> steps;
    PyObject* expected;  // True, False, or the exact type of the value

    using Stack = c10::SmallVector<PyObject*, 16>;  // of owned references

    bool holds(PyObject*, Pass& pass) override {
        Stack stack;
        bool held = run(pass, stack) && agrees(stack.back());
        for (PyObject* x : stack) Py_DECREF(x);
        return held;
    }

    bool agrees(PyObject* x) const {
        return PyType_Check(expected) ? reinterpret_cast<PyObject*>(Py_TYPE(x)) == expected : x == expected;
    }

    bool run(Pass& pass, Stack& stack) const {
        for (const Step& step : steps) {
            if (step.operands < 0) {
                PyObject* x = step.node < 0 ? step.object : pass.values[step.node];
                if (!PyLong_CheckExact(x) && !PyFloat_CheckExact(x) && !PyBool_Check(x)) return false;
                stack.push_back(Py_NewRef(x));
                continue;
            }
            PyObject** first = stack.data() + stack.size() - step.operands;
            PyObject* x = PyObject_Vectorcall(step.object, first, step.operands, nullptr);
            for (int i = 0; i < step.operands; i++) {
                Py_DECREF(stack.back());
                stack.pop_back();
            }
            if (!x) {
                PyErr_Clear();
                return false;
            }
            stack.push_back(x);
        }
        return true;
    }
};

// Whether it carries a tangent of forward-mode differentiation, which compiled code would lose.
inline bool is_dual(const at::TensorImpl* t) {
    auto* meta = static_cast<torch::autograd::AutogradMeta*>(t->autograd_meta());
    return meta && meta->fw_grad_ && !meta->fw_grad_->empty();
}

// The metadata that a trace depends on; guards/guard.py: TensorFacts. Shared by all tensors of a tree that look alike:
// a pass over a thousand weights must not read a thousand descriptions of them.
struct TensorLooks {
    PyTypeObject* type = nullptr;
    at::ScalarType dtype{};
    at::Device device{at::kCPU};
    at::Layout layout = at::kStrided;
    bool requires_grad = false, conj_neg = false, inference = false;
    std::vector<int64_t> shape, stride;
    uint64_t known_keys = 0;  // a dispatch key set that was found to agree with the facts it implies

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
            known_keys = keys.raw_repr();  // other layouts are not told apart by keys alone
        return true;
    }

    bool has_sizes(at::TensorImpl* t) const {
        return same(t->sizes(), shape) && (layout != at::kStrided || same(t->strides(), stride));
    }

    // Most have up to four numbers: a call to compare them costs more than the comparison.
    static bool same(at::IntArrayRef a, const std::vector<int64_t>& b) {
        if (a.size() != b.size()) return false;
        for (size_t i = 0; i < b.size(); i++)
            if (a[i] != b[i]) return false;
        return true;
    }
};

struct TensorIs final : Check {
    std::shared_ptr<TensorLooks> looks;
    bool holds(PyObject* x, Pass&) override { return looks->holds(x); }
};

// A tensor that was found to look as it must, so that the next look is at a few words. What dtype, device, flags and
// the dispatch keys imply is known from then; sizes, strides and requires_grad are compared.
class TensorNote {
  public:
    TensorNote(PyObject* object, TensorLooks* looks)
        : object_(object), impl_(impl_of(object)), word_(Peek::word(impl_)), looks_(looks) {
        if (looks->layout != at::kStrided || !Peek::has_own_sizes(impl_)) impl_ = nullptr;
    }

    bool holds() const {
        bool known = impl_of(object_) == impl_ && Py_TYPE(object_) == looks_->type &&
                     Peek::word(impl_) == word_ && impl_->key_set().raw_repr() == looks_->known_keys;
        if (!known) return looks_->holds(object_);
        return has_sizes() && requires_grad() == looks_->requires_grad && !is_dual(impl_);
    }

  private:
    struct Peek : at::TensorImpl {
        // The eight bytes that hold dtype, device and all flags of a tensor.
        static uint64_t word(const at::TensorImpl* t) {
            static_assert(sizeof(caffe2::TypeMeta) == 2 && sizeof(std::optional<c10::Device>) <= 3);
            uint64_t word;
            std::memcpy(&word, &(t->*(&Peek::data_type_)), sizeof word);
            return word;
        }
        // Whether nobody computes its sizes and strides.
        static bool has_own_sizes(const at::TensorImpl* t) {
            return !(t->*(&Peek::matches_policy))(SizesStridesPolicy::CustomStrides);
        }
        static const c10::impl::SizesAndStrides& sizes(const at::TensorImpl* t) {
            return t->*(&Peek::sizes_and_strides_);
        }
    };

    static at::TensorImpl* impl_of(PyObject* x) { return THPVariable_Unpack(x).unsafeGetTensorImpl(); }

    bool has_sizes() const {
        const c10::impl::SizesAndStrides& own = Peek::sizes(impl_);
        size_t count = looks_->shape.size();
        if (own.size() != count) return false;
        const int64_t *shape = own.sizes_data(), *stride = own.strides_data();
        const int64_t *wanted_shape = looks_->shape.data(), *wanted_stride = looks_->stride.data();
        for (size_t i = 0; i < count; i++)
            if (shape[i] != wanted_shape[i] || stride[i] != wanted_stride[i]) return false;
        return true;
    }

    bool requires_grad() const {
        auto* meta = static_cast<torch::autograd::AutogradMeta*>(impl_->autograd_meta());
        return meta && (meta->requires_grad_ || meta->grad_fn_);
    }

    PyObject* object_;
    at::TensorImpl* impl_;  // compared before it is looked at; null: every look is a complete one
    uint64_t word_;
    TensorLooks* looks_;
};

inline Py_ssize_t length(PyObject* x) {  // -1 if it cannot be read without user code
    if (PyList_Check(x) || PyTuple_Check(x)) return Py_SIZE(x);
    if (PyDict_Check(x)) return PyDict_GET_SIZE(x);
    if (PyAnySet_Check(x)) return PySet_GET_SIZE(x);
    if (PyObject_TypeCheck(x, deque_type)) return Py_SIZE(x);
    if (PyType_HasFeature(Py_TYPE(x), Py_TPFLAGS_HEAPTYPE)) return -1;
    Py_ssize_t size = PyObject_Size(x);
    if (size < 0) PyErr_Clear();
    return size;
}

struct LengthIs : Check {
    Py_ssize_t value;
    explicit LengthIs(Py_ssize_t value) : value(value) {}
    bool holds(PyObject* x, Pass&) override { return length(x) == value; }
    bool stamp(PyObject* x, Stamps& stamps, bool) override {
        if (PyDict_Check(x)) return stamps.take_dict(x);
        if (PyAnySet_Check(x)) return stamps.take(&reinterpret_cast<PySetObject*>(x)->used);
        return (PyList_Check(x) || PyTuple_Check(x)) && stamps.take_size(x);
    }
};

struct KeysAre : Check {
    PyObject* value;  // a tuple: keys of a dictionary, elements of a set, in order
    uint64_t version = 0;
    explicit KeysAre(PyObject* value) : value(value) {}

    bool holds(PyObject* x, Pass&) override {
        if (PyAnySet_Check(x)) return elements(x);
        if (!PyDict_Check(x)) return false;
        if (PyDict_GET_SIZE(x) != PyTuple_GET_SIZE(value)) return false;
        if (PyODict_Check(x)) return ordered_keys(x);
        if (dict_version(x) == version) return true;
        PyObject *key, *item;
        for (Py_ssize_t at = 0, i = 0; PyDict_Next(x, &at, &key, &item); i++)
            if (!same_leaf(key, PyTuple_GET_ITEM(value, i))) return false;
        version = dict_version(x);
        return true;
    }

    bool stamp(PyObject* x, Stamps& stamps, bool) override {
        return PyDict_Check(x) && !PyODict_Check(x) && stamps.take_dict(x);
    }

    bool elements(PyObject* set) const {
        if (PySet_GET_SIZE(set) != PyTuple_GET_SIZE(value)) return false;
        PyObject* item;
        Py_hash_t hash;
        for (Py_ssize_t at = 0, i = 0; _PySet_NextEntry(set, &at, &item, &hash); i++)
            if (!same_leaf(item, PyTuple_GET_ITEM(value, i))) return false;
        return true;
    }

    // An OrderedDict's order is its own, and may change while the dictionary's version stays.
    bool ordered_keys(PyObject* x) {
        PyObject* iterator = PyODict_Type.tp_iter(x);
        bool same = iterator;
        for (Py_ssize_t i = 0; same && i < PyTuple_GET_SIZE(value); i++) {
            PyObject* key = PyIter_Next(iterator);
            same = key && same_leaf(key, PyTuple_GET_ITEM(value, i));
            Py_XDECREF(key);
        }
        Py_XDECREF(iterator);
        if (PyErr_Occurred()) PyErr_Clear();
        return same;
    }
};

struct Contains : Check {
    Membership membership;
    Contains(PyObject* key, bool wanted) : membership{key, wanted} {}
    bool holds(PyObject* x, Pass&) override {
        if (PyDict_Check(x)) return membership.holds(x);
        if (!PyAnySet_Check(x)) return false;
        return set_contains(x, membership.key, membership.hash) == membership.wanted;
    }
    bool stamp(PyObject* x, Stamps& stamps, bool) override { return PyDict_Check(x) && stamps.take_dict(x); }
};

struct NotInDict : Check {
    Name name;
    Membership absent;
    explicit NotInDict(PyObject* name) : name{name}, absent{name, false} {}
    bool holds(PyObject* x, Pass&) override {
        PyObject* dict = PyType_Check(x) ? type_dict(x) : instance_attributes(x).dict;
        return dict ? absent.holds(dict) : !name.in_instance(x);
    }
    bool stamp(PyObject* x, Stamps& stamps, bool) override { return stamps.take_attributes(x); }
};

struct NoAttribute : Check {
    NotInDict own;
    Name dicts[3];
    Membership absent[3];
    explicit NoAttribute(PyObject* name)
        : own(name),
          dicts{{names.parameters}, {names.buffers}, {names.modules}},
          absent{{name, false}, {name, false}, {name, false}} {}

    bool holds(PyObject* x, Pass& pass) override {
        if (!own.holds(x, pass)) return false;
        for (int i = 0; i < 3; i++) {
            PyObject* dict = dicts[i].in_instance(x);
            if (dict && PyDict_Check(dict) && PyDict_GET_SIZE(dict) && !absent[i].holds(dict)) return false;
        }
        return true;
    }

    bool stamp(PyObject* x, Stamps& stamps, bool same) override {
        if (!own.stamp(x, stamps, same)) return false;
        for (Name& name : dicts) {
            PyObject* dict = name.in_instance(x);
            if (dict && PyDict_Check(dict) && !stamps.take_dict(dict)) return false;
        }
        return true;
    }
};

struct NoHooks : Check {
    Name hooks[4] = {
        {names.forward_hooks}, {names.forward_pre_hooks}, {names.backward_hooks}, {names.backward_pre_hooks}};
    bool holds(PyObject* x, Pass&) override {
        for (Name& name : hooks) {
            PyObject* dict = name.in_instance(x);
            if (!dict || !PyDict_Check(dict) || PyDict_GET_SIZE(dict)) return false;
        }
        return true;
    }

    bool stamp(PyObject* x, Stamps& stamps, bool) override {
        if (!stamps.take_instance(x)) return false;
        for (Name& name : hooks)
            if (!stamps.take(&reinterpret_cast<PyDictObject*>(name.in_instance(x))->ma_used)) return false;
        return true;
    }
};

struct TypeVersionIs : Check {
    unsigned int value;
    explicit TypeVersionIs(unsigned int value) : value(value) {}
    bool holds(PyObject* x, Pass&) override {
        return value && PyType_Check(x) && type_version_tag(reinterpret_cast<PyTypeObject*>(x)) == value;
    }
    bool stamp(PyObject* x, Stamps& stamps, bool same) override {
        auto* type = reinterpret_cast<PyTypeObject*>(x);
        return same && stamps.take(&type->tp_flags) && stamps.take(&type->tp_version_tag);  // half is padding
    }
};

struct FunctionIs : Check {
    PyObject *code, *defaults, *keyword_defaults;
    FunctionIs(PyObject* code, PyObject* defaults, PyObject* keyword_defaults)
        : code(code),
          defaults(defaults == Py_None ? nullptr : defaults),
          keyword_defaults(keyword_defaults == Py_None ? nullptr : keyword_defaults) {}
    bool holds(PyObject* x, Pass&) override {
        if (!PyFunction_Check(x)) return false;
        return PyFunction_GET_CODE(x) == code && PyFunction_GET_DEFAULTS(x) == defaults &&
               PyFunction_GET_KW_DEFAULTS(x) == keyword_defaults;
    }
    bool stamp(PyObject* x, Stamps& stamps, bool) override {  // the tree holds all three
        auto* function = reinterpret_cast<PyFunctionObject*>(x);
        return stamps.take(&function->func_code) && stamps.take(&function->func_defaults) &&
               stamps.take(&function->func_kwdefaults);
    }
};

struct SameAs : Check {
    int node;
    std::vector<int> nodes;
    explicit SameAs(int node) : node(node), nodes{node} {}
    bool holds(PyObject* x, Pass& pass) override { return x == pass.values[node]; }
    const std::vector<int>* about() const override { return &nodes; }
};

struct AllDistinct : Check {
    std::vector<int> nodes;
    std::vector<PyObject*> known, now, sorted;  // known: addresses that were found to be distinct
    explicit AllDistinct(std::vector<int> nodes) : nodes(std::move(nodes)) {}
    const std::vector<int>* about() const override { return &nodes; }

    bool holds(PyObject*, Pass& pass) override {
        now.clear();
        for (int node : nodes) now.push_back(pass.values[node]);
        if (now == known) return true;
        sorted = now;
        std::sort(sorted.begin(), sorted.end());
        if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) return false;
        known = now;
        return true;
    }
};

struct NoOverlap : Check {
    std::vector<int> nodes;
    explicit NoOverlap(std::vector<int> nodes) : nodes(std::move(nodes)) {}

    using Range = std::pair<uintptr_t, uintptr_t>;
    bool holds(PyObject*, Pass& pass) override {
        std::vector<Range> ranges;
        std::vector<const c10::StorageImpl*> storages;
        for (int node : nodes) {
            PyObject* x = pass.values[node];
            if (!THPVariable_Check(x)) return false;
            const at::Tensor& t = THPVariable_Unpack(x);
            if (!t.has_storage()) return false;
            const c10::StorageImpl* storage = t.storage().unsafeGetStorageImpl();
            storages.push_back(storage);
            auto begin = reinterpret_cast<uintptr_t>(storage->data());
            if (begin && storage->nbytes()) ranges.emplace_back(begin, begin + storage->nbytes());
        }
        return distinct(storages) && disjoint(ranges);
    }

    static bool distinct(std::vector<const c10::StorageImpl*>& storages) {
        std::sort(storages.begin(), storages.end());
        return std::adjacent_find(storages.begin(), storages.end()) == storages.end();
    }

    static bool disjoint(std::vector<Range>& ranges) {  // two storages may be made over the same memory
        std::sort(ranges.begin(), ranges.end());
        return std::adjacent_find(ranges.begin(), ranges.end(),
                                  [](Range a, Range b) { return b.first < a.second; }) == ranges.end();
    }
};

struct GlobalStateIs : Check {
    GlobalStateMatcher state;
    bool holds(PyObject*, Pass&) override { return state.matches(); }
};

// -------------------------------------------------------------------------------------- building checks

using CheckPtr = std::unique_ptr<Check>;
struct Building {
    Held& held;
    int node;  // the node that the check is on: it may refer to this one and those before it
    std::map<std::vector<int64_t>, std::shared_ptr<TensorLooks>>& looks;
};

inline CheckPtr wrong_value(const char* kind, const char* expected, PyObject* value) {
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_TypeError, "GuardTree: %s needs %s, not %R", kind, expected, value);
    return nullptr;
}

inline CheckPtr make_type(PyObject* value, Building& b) {
    if (!PyType_Check(value)) return wrong_value("type", "a class", value);
    return std::make_unique<TypeIs>(reinterpret_cast<PyTypeObject*>(hold(b.held, value)));
}

// A static class, or an instance of one whose objects cannot be referenced weakly, is kept alive.
inline CheckPtr make_id(PyObject* value, Building& b) {
    if (!PyType_SUPPORTS_WEAKREFS(Py_TYPE(value))) return std::make_unique<ObjectIs>(hold(b.held, value));
    PyObject* reference = PyWeakref_NewRef(value, nullptr);
    if (!reference) return nullptr;
    b.held.push_back(reference);
    return std::make_unique<WeakObjectIs>(value, reference);
}

inline bool is_leaf(PyObject* value) {
    if (PyTuple_Check(value)) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); i++)
            if (!is_leaf(PyTuple_GET_ITEM(value, i))) return false;
        return true;
    }
    bool changes = PyList_Check(value) || PyDict_Check(value) || PySet_Check(value);
    return !changes && !PyType_HasFeature(Py_TYPE(value), Py_TPFLAGS_HEAPTYPE);
}

inline CheckPtr make_eq(PyObject* value, Building& b) {
    if (!is_leaf(value)) return wrong_value("eq", "a constant (use id for objects)", value);
    return std::make_unique<Equals>(hold(b.held, value));
}

inline bool to_int64s(PyObject* sequence, std::vector<int64_t>* out) {
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
    FactsReader(PyObject* facts, Held& held) : facts_(facts), held_(held) {}

    PyObject* operator()(const char* name) {  // borrowed from the tree
        PyObject* value = PyObject_GetAttrString(facts_, name);
        if (value) held_.push_back(value);
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
    Held& held_;
};

// Everything that it says, as numbers.
inline std::vector<int64_t> key_of(const TensorLooks& looks) {
    std::vector<int64_t> key = {reinterpret_cast<intptr_t>(looks.type),
                                static_cast<int64_t>(looks.dtype),
                                static_cast<int64_t>(looks.device.type()),
                                looks.device.index(),
                                static_cast<int64_t>(looks.layout),
                                looks.requires_grad,
                                looks.conj_neg,
                                looks.inference,
                                static_cast<int64_t>(looks.shape.size())};
    key.insert(key.end(), looks.shape.begin(), looks.shape.end());
    key.insert(key.end(), looks.stride.begin(), looks.stride.end());
    return key;
}

inline CheckPtr make_tensor(PyObject* value, Building& b) {
    FactsReader read(value, b.held);
    auto looks = std::make_shared<TensorLooks>();
    PyObject *type = read("type"), *dtype = read("dtype"), *device = read("device"), *layout = read("layout");
    PyObject *shape = read("shape"), *stride = read("stride");
    if (PyErr_Occurred()) return nullptr;
    if (!PyType_Check(type) || PyObject_IsSubclass(type, THPVariableClass) != 1 || !THPDtype_Check(dtype) ||
        !THPDevice_Check(device) || !THPLayout_Check(layout) || !to_int64s(shape, &looks->shape) ||
        !to_int64s(stride, &looks->stride) || !read.flag("requires_grad", &looks->requires_grad) ||
        !read.flag("conj_neg", &looks->conj_neg) || !read.flag("inference", &looks->inference))
        return wrong_value("tensor", "TensorFacts", value);
    looks->type = reinterpret_cast<PyTypeObject*>(type);
    looks->dtype = reinterpret_cast<THPDtype*>(dtype)->scalar_type;
    looks->device = reinterpret_cast<THPDevice*>(device)->device;
    looks->layout = reinterpret_cast<THPLayout*>(layout)->layout;
    auto check = std::make_unique<TensorIs>();
    check->looks = b.looks.emplace(key_of(*looks), looks).first->second;
    return check;
}

inline CheckPtr make_len(PyObject* value, Building&) {
    Py_ssize_t size = PyLong_AsSsize_t(value);
    if (size < 0) return wrong_value("len", "a length", value);
    return std::make_unique<LengthIs>(size);
}

inline CheckPtr make_keys(PyObject* value, Building& b) {
    if (!PyTuple_Check(value)) return wrong_value("keys", "a tuple", value);
    return std::make_unique<KeysAre>(hold(b.held, value));
}

inline CheckPtr make_contains(PyObject* value, Building& b) {
    if (!PyTuple_Check(value) || PyTuple_GET_SIZE(value) != 2)
        return wrong_value("contains", "(key, bool)", value);
    PyObject* key = PyTuple_GET_ITEM(value, 0);
    int wanted = PyObject_IsTrue(PyTuple_GET_ITEM(value, 1));
    if (wanted < 0 || PyObject_Hash(key) == -1) return nullptr;
    if (!compares_natively(key))
        return wrong_value("contains", "a key that is compared without Python code", value);
    return std::make_unique<Contains>(hold(b.held, key), wanted);
}

template <class Kind>
inline CheckPtr make_about_name(PyObject* value, Building& b) {
    PyObject* name = hold_name(b.held, value);
    return name ? std::make_unique<Kind>(name) : nullptr;
}

inline CheckPtr make_no_hooks(PyObject*, Building&) {
    return std::make_unique<NoHooks>();
}

inline CheckPtr make_type_version(PyObject* value, Building&) {
    unsigned long version = PyLong_AsUnsignedLong(value);
    if (PyErr_Occurred()) return wrong_value("type_version", "a number", value);
    return std::make_unique<TypeVersionIs>(static_cast<unsigned int>(version));
}

inline CheckPtr make_function(PyObject* value, Building& b) {
    if (!PyTuple_Check(value) || PyTuple_GET_SIZE(value) != 3)
        return wrong_value("function", "(code, defaults, keyword defaults)", value);
    PyObject* const* parts = reinterpret_cast<PyTupleObject*>(value)->ob_item;
    return std::make_unique<FunctionIs>(hold(b.held, parts[0]), hold(b.held, parts[1]),
                                        hold(b.held, parts[2]));
}

inline bool to_node(PyObject* value, const Building& b, int* node) {
    Py_ssize_t index = PyLong_AsSsize_t(value);
    *node = static_cast<int>(index);
    return !PyErr_Occurred() && index >= 0 && index <= b.node;
}

inline bool to_nodes(PyObject* value, const Building& b, std::vector<int>* nodes) {
    if (!PyTuple_Check(value)) return false;
    nodes->resize(PyTuple_GET_SIZE(value));
    for (size_t i = 0; i < nodes->size(); i++)
        if (!to_node(PyTuple_GET_ITEM(value, i), b, &(*nodes)[i])) return false;
    return true;
}

inline CheckPtr make_alias(PyObject* value, Building& b) {
    int node;
    if (!to_node(value, b, &node)) return wrong_value("alias", "the index of an earlier node", value);
    return std::make_unique<SameAs>(node);
}

template <class Kind>
inline CheckPtr make_about_nodes(PyObject* value, Building& b) {
    std::vector<int> nodes;
    if (!to_nodes(value, b, &nodes))
        return wrong_value("distinct/no_overlap", "indices of earlier nodes", value);
    return std::make_unique<Kind>(std::move(nodes));
}

inline CheckPtr make_number(PyObject* value, Building&) {
    auto* type = reinterpret_cast<PyTypeObject*>(value);
    if (type != &PyLong_Type && type != &PyFloat_Type) return wrong_value("number", "int or float", value);
    return std::make_unique<NumberIs>(type == &PyFloat_Type);
}

// One of ("leaf", node), ("const", number), (function, number of operands); `depth` is that of the stack.
inline bool to_step(PyObject* item, Building& b, Py_ssize_t* depth, ExpressionGives::Step* step) {
    if (!PyTuple_Check(item) || PyTuple_GET_SIZE(item) != 2) return false;
    PyObject *kind = PyTuple_GET_ITEM(item, 0), *value = PyTuple_GET_ITEM(item, 1);
    if (PyUnicode_Check(kind)) {
        ++*depth;
        if (PyUnicode_CompareWithASCIIString(kind, "leaf") == 0) return to_node(value, b, &step->node);
        step->object = hold(b.held, value);
        return true;
    }
    step->operands = static_cast<int>(PyLong_AsLong(value));
    step->object = hold(b.held, kind);
    *depth += 1 - step->operands;
    bool is_native = PyCFunction_Check(kind) ||
                     (PyType_Check(kind) &&
                      !PyType_HasFeature(reinterpret_cast<PyTypeObject*>(kind), Py_TPFLAGS_HEAPTYPE));
    return is_native && step->operands > 0 && *depth > 0;
}

inline CheckPtr make_expression(PyObject* value, Building& b) {
    const char* expected = "(program, True, False or a type)";
    if (!PyTuple_Check(value) || PyTuple_GET_SIZE(value) != 2 || !PyTuple_Check(PyTuple_GET_ITEM(value, 0)))
        return wrong_value("expression", expected, value);
    PyObject *program = PyTuple_GET_ITEM(value, 0), *wanted = PyTuple_GET_ITEM(value, 1);
    auto check = std::make_unique<ExpressionGives>();
    Py_ssize_t depth = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(program); i++) {
        ExpressionGives::Step step;
        if (!to_step(PyTuple_GET_ITEM(program, i), b, &depth, &step))
            return wrong_value("expression", expected, value);
        check->steps.push_back(step);
    }
    if (depth != 1) return wrong_value("expression", expected, value);
    check->expected = hold(b.held, wanted);
    return check;
}

inline CheckPtr make_global_state(PyObject* value, Building&) {
    auto check = std::make_unique<GlobalStateIs>();
    return check->state.parse(value) ? std::move(check) : nullptr;
}

constexpr struct {
    const char* name;
    CheckPtr (*make)(PyObject* value, Building& building);
} kChecks[] = {
    {"type", make_type},
    {"id", make_id},
    {"eq", make_eq},
    {"number", make_number},
    {"expression", make_expression},
    {"tensor", make_tensor},
    {"len", make_len},
    {"keys", make_keys},
    {"contains", make_contains},
    {"not_in_dict", make_about_name<NotInDict>},
    {"no_attr", make_about_name<NoAttribute>},
    {"no_hooks", make_no_hooks},
    {"type_version", make_type_version},
    {"function", make_function},
    {"alias", make_alias},
    {"distinct", make_about_nodes<AllDistinct>},
    {"no_overlap", make_about_nodes<NoOverlap>},
    {"global_state", make_global_state},
};

}  // namespace smelt
