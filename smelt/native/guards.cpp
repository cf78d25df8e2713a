// The guard tree: decides in one pass over a call's argument slots whether a compiled frame may answer the
// call, and collects the tensors that its graph takes.
//
// A tree is a list of nodes, parents before children; a node reads one object from its parent's (an accessor)
// and has checks. Both run in order and the first failure ends the pass, so the builder puts what fails most
// likely first.
//
// What always holds:
//   - No accessor or check runs user code, or raises: what cannot be read is a mismatch.
//   - Values are borrowed from the objects they were read from, which the slots or the tree keep alive; the
//   few new
//     references are kept until the pass ends.
//   - A dictionary version at which a check held is remembered; versions never repeat, so an equal one needs
//   no look.
#include "cpython.h"

#include "global_state.h"
#include "guards.h"
#include "module.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

namespace smelt {
namespace {

PyTypeObject* deque_type;  // collections.deque

struct HookNames {  // the dictionaries of an nn.Module
    PyObject *parameters, *buffers, *modules;
    PyObject *forward_hooks, *forward_pre_hooks, *backward_hooks, *backward_pre_hooks;
} names;

Py_hash_t name_hash(PyObject* name) {
    return reinterpret_cast<PyASCIIObject*>(name)->hash;
}

// A name, and where it was found last.
struct Name {
    PyObject* name;
    Hint hint = 0;

    PyObject* in_dict(PyObject* dict) { return dict_get_name(dict, name, name_hash(name), &hint); }
    PyObject* in_instance(PyObject* x) { return instance_get_name(x, name, name_hash(name), &hint); }
};

// Whether a dictionary lacks (or has) a key, asked again only after the dictionary changed.
struct Membership {
    PyObject* key;
    bool wanted;
    uint64_t version = 0;

    bool holds(PyObject* dict) {
        if (dict_version(dict) == version) return true;
        int found = PyDict_Contains(dict, key);
        if (found < 0) PyErr_Clear();
        if (found != wanted) return false;
        version = dict_version(dict);
        return true;
    }
};

// One pass over the tree.
struct Pass {
    PyObject* const* slots;
    Py_ssize_t slot_count;
    PyObject** values;  // by node
    std::vector<PyObject*> kept{};

    Pass(PyObject* const* slots, Py_ssize_t slot_count, PyObject** values)
        : slots(slots), slot_count(slot_count), values(values) {}
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;
    ~Pass() {
        for (PyObject* x : kept) Py_DECREF(x);
    }

    PyObject* keep(PyObject* fresh) {
        if (fresh)
            kept.push_back(fresh);
        else
            PyErr_Clear();
        return fresh;
    }
};

// References that the tree owns; accessors and checks borrow them.
using Held = std::vector<PyObject*>;

PyObject* hold(Held& held, PyObject* x) {
    held.push_back(Py_NewRef(x));
    return x;
}

PyObject* hold_name(Held& held, PyObject* x) {  // null with a Python error
    if (!PyUnicode_CheckExact(x)) {
        PyErr_Format(PyExc_TypeError, "GuardTree: expected a name, not %R", x);
        return nullptr;
    }
    Py_INCREF(x);
    PyUnicode_InternInPlace(&x);
    if (PyObject_Hash(x) == -1) return nullptr;
    held.push_back(x);
    return x;
}

// ---------------------------------------------------------------------------------------------- accessors

// Reads an object; null if there is none.
struct Accessor {
    virtual ~Accessor() = default;
    virtual PyObject* read(PyObject* base, Pass& pass) = 0;
};

struct Argument : Accessor {
    Py_ssize_t slot;
    explicit Argument(Py_ssize_t slot) : slot(slot) {}
    PyObject* read(PyObject*, Pass& pass) override {
        return slot < pass.slot_count ? pass.slots[slot] : nullptr;
    }
};

struct Constant : Accessor {
    PyObject* value;
    explicit Constant(PyObject* value) : value(value) {}
    PyObject* read(PyObject*, Pass&) override { return value; }
};

struct Attribute : Accessor {
    Name name;
    explicit Attribute(PyObject* name) : name{name} {}
    PyObject* read(PyObject* base, Pass&) override {
        if (!PyType_Check(base)) return name.in_instance(base);
        PyObject* dict = type_dict(base);
        return dict ? name.in_dict(dict) : nullptr;
    }
};

// Whether reading an attribute that the class `type` resolves to `found` would run Python code.
bool runs_python(PyObject* found) {
    if (!found) return false;
    PyTypeObject* type = Py_TYPE(found);
    if (!type->tp_descr_get) return false;
    return PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) || type == &PyProperty_Type;
}

struct Member : Accessor {
    PyObject* name;
    explicit Member(PyObject* name) : name(name) {}
    PyObject* read(PyObject* base, Pass& pass) override {
        if (runs_python(_PyType_Lookup(Py_TYPE(base), name))) return nullptr;
        if (!PyType_Check(base)) return pass.keep(PyObject_GenericGetAttr(base, name));
        if (runs_python(_PyType_Lookup(reinterpret_cast<PyTypeObject*>(base), name))) return nullptr;
        return pass.keep(PyType_Type.tp_getattro(base, name));
    }
};

// As nn.Module.__getattr__: parameters, then buffers, then modules; the one that had the name is asked first,
// after a look that those before it do not have it now.
struct ModuleParameter : Accessor {
    PyObject* name;
    Name dicts[3];
    Name keys[3];
    Membership absent[2];
    int which = 0;

    explicit ModuleParameter(PyObject* name)
        : name(name),
          dicts{{names.parameters}, {names.buffers}, {names.modules}},
          keys{{name}, {name}, {name}},
          absent{{name, false}, {name, false}} {}

    PyObject* read(PyObject* base, Pass&) override {
        for (int i = 0; i < which; i++) {
            PyObject* dict = dicts[i].in_instance(base);
            if (!dict || !PyDict_Check(dict)) return nullptr;
            if (PyDict_GET_SIZE(dict) && !absent[i].holds(dict)) which = i;
        }
        for (int i = which; i < 3; i++) {
            PyObject* dict = dicts[i].in_instance(base);
            if (!dict || !PyDict_Check(dict)) return nullptr;
            PyObject* value = keys[i].in_dict(dict);
            if (!value) continue;
            which = i;
            return value;
        }
        which = 0;
        return nullptr;
    }
};

PyObject* at_index(PyObject* const* items, Py_ssize_t size, Py_ssize_t index) {
    if (index < 0) index += size;
    return index >= 0 && index < size ? items[index] : nullptr;
}

struct Item : Accessor {
    PyObject* key;
    Py_hash_t hash;
    Name name;             // key, if it is a string
    Py_ssize_t index = 0;  // key, if it is an integer
    bool is_index;

    Item(PyObject* key, Py_hash_t hash)
        : key(key), hash(hash), name{PyUnicode_CheckExact(key) ? key : nullptr} {
        is_index = PyLong_Check(key);
        if (is_index) index = PyLong_AsSsize_t(key);
        if (PyErr_Occurred()) {
            PyErr_Clear();
            is_index = false;
        }
    }

    PyObject* read(PyObject* base, Pass& pass) override {
        if (PyDict_Check(base)) {
            if (name.name) return name.in_dict(base);
            PyObject* value = _PyDict_GetItem_KnownHash(base, key, hash);
            if (!value) PyErr_Clear();
            return value;
        }
        if (is_index && PyList_Check(base))
            return at_index(reinterpret_cast<PyListObject*>(base)->ob_item, PyList_GET_SIZE(base), index);
        if (is_index && PyTuple_Check(base))
            return at_index(reinterpret_cast<PyTupleObject*>(base)->ob_item, PyTuple_GET_SIZE(base), index);
        if (is_index && PyObject_TypeCheck(base, deque_type)) return pass.keep(deque_item(base));
        if (PyType_HasFeature(Py_TYPE(base), Py_TPFLAGS_HEAPTYPE)) return nullptr;
        return pass.keep(PyObject_GetItem(base, key));
    }

    PyObject* deque_item(PyObject* base) const {
        return deque_type->tp_as_sequence->sq_item(base, index < 0 ? index + Py_SIZE(base) : index);
    }
};

struct Cell : Accessor {
    Py_ssize_t index;
    explicit Cell(Py_ssize_t index) : index(index) {}
    PyObject* read(PyObject* base, Pass&) override {
        if (!PyFunction_Check(base)) return nullptr;
        PyObject* closure = PyFunction_GET_CLOSURE(base);
        if (!closure || index < 0 || index >= PyTuple_GET_SIZE(closure)) return nullptr;
        PyObject* cell = PyTuple_GET_ITEM(closure, index);
        return PyCell_Check(cell) ? PyCell_GET(cell) : nullptr;
    }
};

struct Default : Accessor {
    Py_ssize_t index;
    explicit Default(Py_ssize_t index) : index(index) {}
    PyObject* read(PyObject* base, Pass&) override {
        PyObject* defaults = PyFunction_Check(base) ? PyFunction_GET_DEFAULTS(base) : nullptr;
        if (!defaults) return nullptr;
        return at_index(reinterpret_cast<PyTupleObject*>(defaults)->ob_item, PyTuple_GET_SIZE(defaults),
                        index);
    }
};

struct KeywordDefault : Accessor {
    Name name;
    explicit KeywordDefault(PyObject* name) : name{name} {}
    PyObject* read(PyObject* base, Pass&) override {
        PyObject* defaults = PyFunction_Check(base) ? PyFunction_GET_KW_DEFAULTS(base) : nullptr;
        return defaults ? name.in_dict(defaults) : nullptr;
    }
};

struct TypeOf : Accessor {
    PyObject* read(PyObject* base, Pass&) override { return reinterpret_cast<PyObject*>(Py_TYPE(base)); }
};

struct DictOf : Accessor {
    PyObject* read(PyObject* base, Pass&) override {
        return PyType_Check(base) ? type_dict(base) : instance_dict(base);
    }
};

struct CallOf : Accessor {
    PyObject* read(PyObject* base, Pass& pass) override { return pass.keep(PyObject_CallNoArgs(base)); }
};

using AccessorPtr = std::unique_ptr<Accessor>;

AccessorPtr make_argument(PyObject* key, Held&) {
    Py_ssize_t slot = PyLong_AsSsize_t(key);
    if (slot < 0 && !PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "GuardTree: negative argument slot");
    return slot < 0 ? nullptr : std::make_unique<Argument>(slot);
}

AccessorPtr make_constant(PyObject* key, Held& held) {
    return std::make_unique<Constant>(hold(held, key));
}

AccessorPtr make_item(PyObject* key, Held& held) {
    Py_hash_t hash = PyObject_Hash(key);
    if (hash == -1) return nullptr;
    return std::make_unique<Item>(PyUnicode_CheckExact(key) ? hold_name(held, key) : hold(held, key), hash);
}

template <class Kind>
AccessorPtr make_named(PyObject* key, Held& held) {
    PyObject* name = hold_name(held, key);
    return name ? std::make_unique<Kind>(name) : nullptr;
}

template <class Kind>
AccessorPtr make_indexed(PyObject* key, Held&) {
    Py_ssize_t index = PyLong_AsSsize_t(key);
    return PyErr_Occurred() ? nullptr : std::make_unique<Kind>(index);
}

template <class Kind>
AccessorPtr make_plain(PyObject*, Held&) {
    return std::make_unique<Kind>();
}

constexpr struct {
    const char* name;
    bool is_root;
    AccessorPtr (*make)(PyObject* key, Held& held);
} kAccessors[] = {
    {"arg", true, make_argument},
    {"const", true, make_constant},
    {"attr", false, make_named<Attribute>},
    {"member", false, make_named<Member>},
    {"param", false, make_named<ModuleParameter>},
    {"item", false, make_item},
    {"cell", false, make_indexed<Cell>},
    {"default", false, make_indexed<Default>},
    {"kwdefault", false, make_named<KeywordDefault>},
    {"type", false, make_plain<TypeOf>},
    {"dict", false, make_plain<DictOf>},
    {"call", false, make_plain<CallOf>},
};

// ------------------------------------------------------------------------------------------------- checks

// A fact about the object of a node.
struct Check {
    int guard = -1;  // its number among the guards the tree was built from
    virtual ~Check() = default;
    virtual bool holds(PyObject* x, Pass& pass) = 0;
};

struct TypeIs : Check {
    PyTypeObject* type;
    explicit TypeIs(PyTypeObject* type) : type(type) {}
    bool holds(PyObject* x, Pass&) override { return Py_TYPE(x) == type; }
};

struct ObjectIs : Check {
    PyObject* value;
    explicit ObjectIs(PyObject* value) : value(value) {}
    bool holds(PyObject* x, Pass&) override { return x == value; }
};

struct WeakObjectIs : Check {
    PyObject* address;  // not owned: says something only while the reference lives
    PyObject* reference;
    WeakObjectIs(PyObject* value, PyObject* reference) : address(value), reference(reference) {}
    bool holds(PyObject* x, Pass&) override { return x == address && PyWeakref_GET_OBJECT(reference) == x; }
};

bool same_double(double a, double b) {
    return a == b ? std::signbit(a) == std::signbit(b) : a != a && b != b;  // NaN equals itself
}

bool same_leaf(PyObject* x, PyObject* value);

bool same_items(PyObject* x, PyObject* value) {
    Py_ssize_t size = PyTuple_GET_SIZE(value);
    if (PyTuple_GET_SIZE(x) != size) return false;
    for (Py_ssize_t i = 0; i < size; i++)
        if (!same_leaf(PyTuple_GET_ITEM(x, i), PyTuple_GET_ITEM(value, i))) return false;
    return true;
}

bool same_slice(PyObject* x, PyObject* value) {
    auto *a = reinterpret_cast<PySliceObject*>(x), *b = reinterpret_cast<PySliceObject*>(value);
    return same_leaf(a->start, b->start) && same_leaf(a->stop, b->stop) && same_leaf(a->step, b->step);
}

// Same type and same value, of constants without user code. Objects of classes written in Python are compared
// by identity.
bool same_leaf(PyObject* x, PyObject* value) {
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
    if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) return false;
    int same = PyObject_RichCompareBool(x, value, Py_EQ);
    if (same < 0) PyErr_Clear();
    return same > 0;
}

struct Equals : Check {
    PyObject* value;
    explicit Equals(PyObject* value) : value(value) {}
    bool holds(PyObject* x, Pass&) override { return same_leaf(x, value); }
};

// The metadata that a trace depends on; guards/guard.py: TensorFacts.
struct TensorIs : Check {
    PyTypeObject* type = nullptr;
    at::ScalarType dtype{};
    at::Device device{at::kCPU};
    at::Layout layout = at::kStrided;
    bool requires_grad = false, conj_neg = false, inference = false;
    std::vector<int64_t> shape, stride;
    uint64_t known_keys = 0;  // a dispatch key set that was found to agree with the facts it implies

    bool holds(PyObject* x, Pass&) override {
        if (Py_TYPE(x) != type) return false;
        at::TensorImpl* t = THPVariable_Unpack(x).unsafeGetTensorImpl();
        c10::DispatchKeySet keys = t->key_set();
        if (keys.raw_repr() != known_keys && !agrees(t, keys)) return false;
        return t->dtype() == c10::scalarTypeToTypeMeta(dtype) && t->sizes() == at::IntArrayRef(shape) &&
               (layout != at::kStrided || t->strides() == at::IntArrayRef(stride)) && t->device() == device &&
               t->requires_grad() == requires_grad;
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
};

Py_ssize_t length(PyObject* x) {  // -1 if it cannot be read without user code
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
};

struct KeysAre : Check {
    PyObject* value;  // a tuple
    uint64_t version = 0;
    explicit KeysAre(PyObject* value) : value(value) {}

    bool holds(PyObject* x, Pass&) override {
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
        int found = PySet_Contains(x, membership.key);
        if (found < 0) PyErr_Clear();
        return found == membership.wanted;
    }
};

struct NotInDict : Check {
    Name name;
    Membership absent;
    explicit NotInDict(PyObject* name) : name{name}, absent{name, false} {}
    bool holds(PyObject* x, Pass&) override {
        PyObject* dict = PyType_Check(x) ? type_dict(x) : instance_attributes(x).dict;
        return dict ? absent.holds(dict) : !name.in_instance(x);
    }
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
};

struct TypeVersionIs : Check {
    unsigned int value;
    explicit TypeVersionIs(unsigned int value) : value(value) {}
    bool holds(PyObject* x, Pass&) override {
        return value && PyType_Check(x) && type_version_tag(reinterpret_cast<PyTypeObject*>(x)) == value;
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
};

struct SameAs : Check {
    int node;
    explicit SameAs(int node) : node(node) {}
    bool holds(PyObject* x, Pass& pass) override { return x == pass.values[node]; }
};

struct AllDistinct : Check {
    std::vector<int> nodes;
    std::vector<PyObject*> known, now, sorted;  // known: addresses that were found to be distinct
    explicit AllDistinct(std::vector<int> nodes) : nodes(std::move(nodes)) {}

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
};

CheckPtr wrong_value(const char* kind, const char* expected, PyObject* value) {
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_TypeError, "GuardTree: %s needs %s, not %R", kind, expected, value);
    return nullptr;
}

CheckPtr make_type(PyObject* value, Building& b) {
    if (!PyType_Check(value)) return wrong_value("type", "a class", value);
    return std::make_unique<TypeIs>(reinterpret_cast<PyTypeObject*>(hold(b.held, value)));
}

// A static class, or an instance of one whose objects cannot be referenced weakly, is kept alive.
CheckPtr make_id(PyObject* value, Building& b) {
    if (!PyType_SUPPORTS_WEAKREFS(Py_TYPE(value))) return std::make_unique<ObjectIs>(hold(b.held, value));
    PyObject* reference = PyWeakref_NewRef(value, nullptr);
    if (!reference) return nullptr;
    b.held.push_back(reference);
    return std::make_unique<WeakObjectIs>(value, reference);
}

bool is_leaf(PyObject* value) {
    if (PyTuple_Check(value)) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); i++)
            if (!is_leaf(PyTuple_GET_ITEM(value, i))) return false;
        return true;
    }
    return !PyType_HasFeature(Py_TYPE(value), Py_TPFLAGS_HEAPTYPE);
}

CheckPtr make_eq(PyObject* value, Building& b) {
    if (!is_leaf(value)) return wrong_value("eq", "a constant (use id for objects)", value);
    return std::make_unique<Equals>(hold(b.held, value));
}

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

CheckPtr make_tensor(PyObject* value, Building& b) {
    FactsReader read(value, b.held);
    auto check = std::make_unique<TensorIs>();
    PyObject *type = read("type"), *dtype = read("dtype"), *device = read("device"), *layout = read("layout");
    PyObject *shape = read("shape"), *stride = read("stride");
    if (PyErr_Occurred()) return nullptr;
    if (!PyType_Check(type) || PyObject_IsSubclass(type, THPVariableClass) != 1 || !THPDtype_Check(dtype) ||
        !THPDevice_Check(device) || !THPLayout_Check(layout) || !to_int64s(shape, &check->shape) ||
        !to_int64s(stride, &check->stride) || !read.flag("requires_grad", &check->requires_grad) ||
        !read.flag("conj_neg", &check->conj_neg) || !read.flag("inference", &check->inference))
        return wrong_value("tensor", "TensorFacts", value);
    check->type = reinterpret_cast<PyTypeObject*>(type);
    check->dtype = reinterpret_cast<THPDtype*>(dtype)->scalar_type;
    check->device = reinterpret_cast<THPDevice*>(device)->device;
    check->layout = reinterpret_cast<THPLayout*>(layout)->layout;
    return check;
}

CheckPtr make_len(PyObject* value, Building&) {
    Py_ssize_t size = PyLong_AsSsize_t(value);
    if (size < 0) return wrong_value("len", "a length", value);
    return std::make_unique<LengthIs>(size);
}

CheckPtr make_keys(PyObject* value, Building& b) {
    if (!PyTuple_Check(value)) return wrong_value("keys", "a tuple", value);
    return std::make_unique<KeysAre>(hold(b.held, value));
}

CheckPtr make_contains(PyObject* value, Building& b) {
    if (!PyTuple_Check(value) || PyTuple_GET_SIZE(value) != 2)
        return wrong_value("contains", "(key, bool)", value);
    PyObject* key = PyTuple_GET_ITEM(value, 0);
    int wanted = PyObject_IsTrue(PyTuple_GET_ITEM(value, 1));
    if (wanted < 0 || PyObject_Hash(key) == -1) return nullptr;
    return std::make_unique<Contains>(hold(b.held, key), wanted);
}

template <class Kind>
CheckPtr make_about_name(PyObject* value, Building& b) {
    PyObject* name = hold_name(b.held, value);
    return name ? std::make_unique<Kind>(name) : nullptr;
}

CheckPtr make_no_hooks(PyObject*, Building&) {
    return std::make_unique<NoHooks>();
}

CheckPtr make_type_version(PyObject* value, Building&) {
    unsigned long version = PyLong_AsUnsignedLong(value);
    if (PyErr_Occurred()) return wrong_value("type_version", "a number", value);
    return std::make_unique<TypeVersionIs>(static_cast<unsigned int>(version));
}

CheckPtr make_function(PyObject* value, Building& b) {
    if (!PyTuple_Check(value) || PyTuple_GET_SIZE(value) != 3)
        return wrong_value("function", "(code, defaults, keyword defaults)", value);
    PyObject* const* parts = reinterpret_cast<PyTupleObject*>(value)->ob_item;
    return std::make_unique<FunctionIs>(hold(b.held, parts[0]), hold(b.held, parts[1]),
                                        hold(b.held, parts[2]));
}

bool to_node(PyObject* value, const Building& b, int* node) {
    Py_ssize_t index = PyLong_AsSsize_t(value);
    *node = static_cast<int>(index);
    return !PyErr_Occurred() && index >= 0 && index <= b.node;
}

bool to_nodes(PyObject* value, const Building& b, std::vector<int>* nodes) {
    if (!PyTuple_Check(value)) return false;
    nodes->resize(PyTuple_GET_SIZE(value));
    for (size_t i = 0; i < nodes->size(); i++)
        if (!to_node(PyTuple_GET_ITEM(value, i), b, &(*nodes)[i])) return false;
    return true;
}

CheckPtr make_alias(PyObject* value, Building& b) {
    int node;
    if (!to_node(value, b, &node)) return wrong_value("alias", "the index of an earlier node", value);
    return std::make_unique<SameAs>(node);
}

template <class Kind>
CheckPtr make_about_nodes(PyObject* value, Building& b) {
    std::vector<int> nodes;
    if (!to_nodes(value, b, &nodes))
        return wrong_value("distinct/no_overlap", "indices of earlier nodes", value);
    return std::make_unique<Kind>(std::move(nodes));
}

CheckPtr make_global_state(PyObject* value, Building&) {
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

// The row of a table by its name; null with a Python error.
template <class Row, size_t size>
const Row* find_row(const Row (&table)[size], PyObject* name, const char* what) {
    for (const Row& row : table)
        if (PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, row.name) == 0) return &row;
    PyErr_Format(PyExc_ValueError, "GuardTree: unknown %s %R", what, name);
    return nullptr;
}

// --------------------------------------------------------------------------------------------- the tree

struct Node {
    int parent;
    int collect;
    AccessorPtr accessor;
    std::vector<CheckPtr> checks;
};

struct Tree {
    std::vector<Node> nodes;
    int n_collect = 0;
    Held held;

    // Whether all guards hold. If not, *failed is the number of the first that does not.
    bool run(Pass& pass, int* failed) {
        for (size_t i = 0; i < nodes.size(); i++) {
            Node& node = nodes[i];
            PyObject* x = node.accessor->read(node.parent < 0 ? nullptr : pass.values[node.parent], pass);
            if (!x) {
                *failed = first_guard_under(i);
                return false;
            }
            pass.values[i] = x;
            for (CheckPtr& check : node.checks) {
                if (check->holds(x, pass)) continue;
                *failed = check->guard;
                return false;
            }
        }
        return true;
    }

    // An object that is missing fails the first guard that needs it: on its node or below. -1 if there is
    // none.
    int first_guard_under(size_t root) const {
        std::vector<bool> under(nodes.size(), false);
        for (size_t i = root; i < nodes.size(); i++) {
            under[i] = i == root || (nodes[i].parent >= 0 && under[nodes[i].parent]);
            if (under[i] && !nodes[i].checks.empty()) return nodes[i].checks[0]->guard;
        }
        return -1;
    }
};

struct GuardTree {
    PyObject_HEAD Tree* tree;  // null once cleared by the collector: then no call matches
};

Tree* tree_of(PyObject* self) {
    return reinterpret_cast<GuardTree*>(self)->tree;
}

// Runs `use(pass)` over a fresh pass; nothing leaves it: what torch throws is a mismatch.
template <class Use>
void with_pass(Tree* tree, PyObject* const* slots, Py_ssize_t count, Use use) {
    constexpr size_t kLocal = 256;
    PyObject* local[kLocal];
    std::unique_ptr<PyObject*[]> large(tree->nodes.size() > kLocal ? new PyObject*[tree->nodes.size()]
                                                                   : nullptr);
    Pass pass(slots, count, large ? large.get() : local);
    try {
        use(pass);
    } catch (...) {
        PyErr_Clear();
    }
}

PyObject* collect(const Tree& tree, const Pass& pass) {
    PyObject* out = PyTuple_New(tree.n_collect);
    if (!out) {
        PyErr_Clear();
        return nullptr;
    }
    for (size_t i = 0; i < tree.nodes.size(); i++)
        if (tree.nodes[i].collect >= 0)
            PyTuple_SET_ITEM(out, tree.nodes[i].collect, Py_NewRef(pass.values[i]));
    return out;
}

// One (guard_index, kind, value).
bool add_check(PyObject* spec, Tree& tree, Node& node) {
    PyObject *kind, *value;
    int guard;
    if (!PyArg_ParseTuple(spec, "iOO;a check is (guard_index, kind, value)", &guard, &kind, &value))
        return false;
    auto* row = find_row(kChecks, kind, "guard kind");
    if (!row) return false;
    Building building{tree.held, static_cast<int>(tree.nodes.size())};
    CheckPtr check = row->make(value, building);
    if (!check) return false;
    check->guard = guard;
    node.checks.push_back(std::move(check));
    return true;
}

// One (parent_index, accessor_kind, accessor_key, checks, collect_index).
bool add_node(PyObject* spec, Tree& tree, std::vector<bool>& collected) {
    PyObject *kind, *key, *checks;
    Node node{};
    if (!PyTuple_Check(spec) ||
        !PyArg_ParseTuple(spec, "iOOO!i;a node is (parent, kind, key, checks, collect)", &node.parent, &kind,
                          &key, &PyTuple_Type, &checks, &node.collect)) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "GuardTree: a node is a tuple");
        return false;
    }
    auto* row = find_row(kAccessors, kind, "accessor");
    if (!row) return false;
    if (row->is_root ? node.parent != -1
                     : node.parent < 0 || node.parent >= static_cast<int>(tree.nodes.size())) {
        PyErr_Format(PyExc_ValueError, "GuardTree: node %zu (%s) has parent %d", tree.nodes.size(), row->name,
                     node.parent);
        return false;
    }
    if (node.collect < -1 || node.collect >= tree.n_collect ||
        (node.collect >= 0 && collected[node.collect])) {
        PyErr_Format(PyExc_ValueError, "GuardTree: node %zu has collect index %d", tree.nodes.size(),
                     node.collect);
        return false;
    }
    if (node.collect >= 0) collected[node.collect] = true;
    if (!(node.accessor = row->make(key, tree.held))) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(checks); i++) {
        PyObject* check = PyTuple_GET_ITEM(checks, i);
        if (!PyTuple_Check(check)) {
            PyErr_SetString(PyExc_TypeError, "GuardTree: a check is a tuple");
            return false;
        }
        if (!add_check(check, tree, node)) return false;
    }
    tree.nodes.push_back(std::move(node));
    return true;
}

bool build(PyObject* spec, Tree& tree) {
    PyObject* nodes;
    if (!PyTuple_Check(spec)) {
        PyErr_SetString(PyExc_TypeError, "GuardTree: expected (nodes, n_collect)");
        return false;
    }
    if (!PyArg_ParseTuple(spec, "O!i;GuardTree: expected (nodes, n_collect)", &PyTuple_Type, &nodes,
                          &tree.n_collect))
        return false;
    std::vector<bool> collected(std::max(tree.n_collect, 0), false);
    tree.nodes.reserve(PyTuple_GET_SIZE(nodes));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(nodes); i++)
        if (!add_node(PyTuple_GET_ITEM(nodes, i), tree, collected)) return false;
    if (std::find(collected.begin(), collected.end(), false) == collected.end()) return true;
    PyErr_SetString(PyExc_ValueError, "GuardTree: a collect index is missing");
    return false;
}

int traverse_tree(PyObject* self, visitproc visit, void* arg) {
    if (Tree* tree = tree_of(self))
        for (PyObject* x : tree->held) Py_VISIT(x);
    return 0;
}

int clear_tree(PyObject* self) {
    Tree* tree = std::exchange(reinterpret_cast<GuardTree*>(self)->tree, nullptr);
    if (!tree) return 0;
    for (PyObject* x : tree->held) Py_DECREF(x);
    delete tree;
    return 0;
}

void dealloc_tree(PyObject* self) {
    PyObject_GC_UnTrack(self);
    clear_tree(self);
    Py_TYPE(self)->tp_free(self);
}

PyObject* new_tree(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
    PyObject* spec;
    static const char* keywords[] = {"spec", nullptr};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:GuardTree", const_cast<char**>(keywords), &spec))
        return nullptr;
    PyObject* self = type->tp_alloc(type, 0);
    if (!self) return nullptr;
    reinterpret_cast<GuardTree*>(self)->tree = new Tree;
    if (build(spec, *tree_of(self))) return self;
    Py_DECREF(self);
    return nullptr;
}

PyObject* py_check(PyObject* self, PyObject* const* slots, Py_ssize_t count) {
    PyObject* inputs = check_guard_tree(self, slots, count);
    return inputs ? inputs : Py_NewRef(Py_None);
}

PyObject* py_explain(PyObject* self, PyObject* const* slots, Py_ssize_t count) {
    Tree* tree = tree_of(self);
    if (!tree) return PyLong_FromLong(-1);
    int failed = -1;
    bool held = false;
    with_pass(tree, slots, count, [&](Pass& pass) { held = tree->run(pass, &failed); });
    return held ? Py_NewRef(Py_None) : PyLong_FromLong(failed);
}

PyCFunction fast(PyObject* (*method)(PyObject*, PyObject* const*, Py_ssize_t)) {
    return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(method));
}

PyMethodDef tree_methods[] = {{"check", fast(py_check), METH_FASTCALL,
                               "check(*slots): the tuple of collected objects, or None on a mismatch."},
                              {"explain", fast(py_explain), METH_FASTCALL,
                               "explain(*slots): the index of the first guard that fails, or None. -1: an "
                               "object is missing that no guard is on."},
                              {}};

PyTypeObject guard_tree_type = {PyVarObject_HEAD_INIT(nullptr, 0) "smelt._native.GuardTree",
                                sizeof(GuardTree)};

int ready_guard_tree_type() {
    PyTypeObject& t = guard_tree_type;
    t.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
    t.tp_doc = "GuardTree(spec): spec is (nodes, n_collect), see smelt/guards/build.py.";
    t.tp_new = new_tree;
    t.tp_dealloc = dealloc_tree;
    t.tp_traverse = traverse_tree;
    t.tp_clear = clear_tree;
    t.tp_methods = tree_methods;
    return PyType_Ready(&t);
}

PyObject* py_type_version(PyObject*, PyObject* cls) {
    if (!PyType_Check(cls))
        return PyErr_Format(PyExc_TypeError, "type_version: expected a class, not %R", cls);
    _PyType_Lookup(reinterpret_cast<PyTypeObject*>(cls), names.modules);  // a lookup assigns a version
    return PyLong_FromUnsignedLong(type_version_tag(reinterpret_cast<PyTypeObject*>(cls)));
}

PyObject* py_global_state(PyObject*, PyObject*) {
    return global_state_tuple();
}

PyMethodDef functions[] = {
    {"type_version", py_type_version, METH_O,
     "type_version(cls): a number that changes when the class or a base does. 0: the class has no version."},
    {"global_state", py_global_state, METH_NOARGS,
     "global_state(): everything outside the arguments that changes what operators do; a tuple of int, named "
     "by\n"
     "GLOBAL_STATE."},
    {}};

bool init_names() {
    constexpr struct {
        PyObject* HookNames::* name;
        const char* text;
    } kNames[] = {{&HookNames::parameters, "_parameters"},
                  {&HookNames::buffers, "_buffers"},
                  {&HookNames::modules, "_modules"},
                  {&HookNames::forward_hooks, "_forward_hooks"},
                  {&HookNames::forward_pre_hooks, "_forward_pre_hooks"},
                  {&HookNames::backward_hooks, "_backward_hooks"},
                  {&HookNames::backward_pre_hooks, "_backward_pre_hooks"}};
    for (auto& row : kNames) {
        PyObject* name = PyUnicode_InternFromString(row.text);
        if (!name || PyObject_Hash(name) == -1) return false;
        names.*row.name = name;
    }
    return true;
}

bool init_deque_type() {
    PyObject* module = PyImport_ImportModule("collections");
    deque_type = module ? reinterpret_cast<PyTypeObject*>(PyObject_GetAttrString(module, "deque")) : nullptr;
    Py_XDECREF(module);
    return deque_type;
}

}  // namespace

bool is_guard_tree(PyObject* object) {
    return Py_IS_TYPE(object, &guard_tree_type);
}

PyObject* check_guard_tree(PyObject* self, PyObject* const* slots, Py_ssize_t count) {
    Tree* tree = tree_of(self);
    PyObject* out = nullptr;
    if (!tree) return nullptr;
    with_pass(tree, slots, count, [&](Pass& pass) {
        int failed;
        if (tree->run(pass, &failed)) out = collect(*tree, pass);
    });
    return out;
}

int init_guards(PyObject* module) {
    if (!init_names() || !init_deque_type() || ready_guard_tree_type() < 0) return -1;
    PyObject* state_names = global_state_names();
    int failed = !state_names || PyModule_AddObjectRef(module, "GLOBAL_STATE", state_names) < 0;
    Py_XDECREF(state_names);
    if (failed ||
        PyModule_AddObjectRef(module, "GuardTree", reinterpret_cast<PyObject*>(&guard_tree_type)) < 0)
        return -1;
    return PyModule_AddFunctions(module, functions);
}

}  // namespace smelt
