// smelt._native.SizeDispatch: dispatch by size. A call reads the sizes of its inputs and runs the instance that was
// compiled for them, with the same arguments and results.
//
// The most recently used instances are cached, and found by hash. Invariants: the cache changes only with the GIL held and
// without Python code in between; the first of `cached` is the most recently used; and a call holds a reference to the
// instance that it runs, because others may evict it. Instances are compiled under a lock, one at a time. The memory that
// their plans hold between calls belongs to an `ArenaBudget`.
#include <c10/util/SmallVector.h>
#include <c10/util/hash.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <list>
#include <memory>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bindings/arena_budget.h"
#include "bindings/plan.h"
#include "module.h"
#include "shapes/size_program.h"
#include "torch_python.h"
// structmember.h needs Python.h before it.
#include <structmember.h>

namespace smelt::plan {
namespace {

// The number of instances that are always cached. Compiling one takes milliseconds.
constexpr size_t kFewInstances = 64;
// More are cached while the programs of their plans, and what an instance has besides them, take less than this.
constexpr size_t kMaxBytes = size_t{64} << 20, kBytesBesidePlans = size_t{8} << 10;

// A number read from an input: the size of dimension `dim`, or with kItself the input itself, an int. With `over`:
// the difference between the stride of `dim` and the extent of dimension `over` in memory. The number is the quotient
// by `divisor`, or with `remainder` the remainder.
struct Source {
    size_t input;
    int64_t dim, divisor;
    std::optional<int64_t> over;
    bool remainder;

    int64_t reduce(int64_t number) const {
        return remainder ? shapes::modulo(number, divisor) : shapes::floor_divide(number, divisor);
    }
};
constexpr int64_t kItself = -1;

using Values = c10::SmallVector<int64_t, 8>;  // one for each source

// Whether it is a plan of kernel launches only, or a Differentiable whose forward is one.
bool calls_kernels_only(PyObject* callable) {
    if (is_plan(callable)) return plan_launches_only(callable);
    THPObjectPtr forward(PyObject_GetAttrString(callable, "forward"));
    if (!forward) PyErr_Clear();
    return forward && is_plan(forward) && plan_launches_only(forward);
}

struct HashOfValues {
    size_t operator()(const Values& values) const {
        size_t hash = values.size();
        for (const int64_t v : values) hash = c10::hash_combine(hash, std::hash<int64_t>{}(v));
        return hash;
    }
};

struct Instance {
    Values values;
    PyObject* callable;
    bool launches_only;

    Instance(const Values& values, PyObject* callable)
        : values(values), callable(Py_NewRef(callable)), launches_only(calls_kernels_only(callable)) {}
    Instance(const Instance&) = delete;
    Instance& operator=(const Instance&) = delete;
    ~Instance() { Py_DECREF(callable); }
};

using InstanceList = std::list<Instance>;

class Instances {
  public:
    std::vector<Source> sources;
    std::shared_ptr<ArenaBudget> budget;  // null: plans are unknown, few instances are cached

    const InstanceList& cached() const { return cached_; }

    // The instance for these numbers, which becomes the first; null if none is cached.
    const Instance* find(const Values& values) {
        if (!cached_.empty() && cached_.front().values == values) return &cached_.front();
        const auto found = positions_.find(values);
        if (found == positions_.end()) return nullptr;
        cached_.splice(cached_.begin(), cached_, found->second);
        return &cached_.front();
    }

    // Evicts at most two, so that the cache shrinks where the programs of evicted ones live on in autograd graphs.
    void insert(const Values& values, PyObject* callable) {
        cached_.emplace_front(values, callable);
        positions_[values] = cached_.begin();
        for (int i = 0; i < 2 && is_full(); ++i) {
            InstanceList evicted;  // freed when the cache is consistent again
            positions_.erase(cached_.back().values);
            evicted.splice(evicted.end(), cached_, std::prev(cached_.end()));
        }
    }

    InstanceList take_all() {
        positions_.clear();
        return std::exchange(cached_, {});
    }

  private:
    bool is_full() const {
        if (cached_.size() <= kFewInstances) return false;
        return !budget || budget->program_bytes() + cached_.size() * kBytesBesidePlans > kMaxBytes;
    }

    InstanceList cached_;
    std::unordered_map<Values, InstanceList::iterator, HashOfValues> positions_;
};

struct SizeDispatchObject {
    PyObject_HEAD vectorcallfunc vectorcall;
    Instances* instances;
    PyObject *make, *lock;  // null once the garbage collector has cleared it
    PyObject* weakrefs;
};

SizeDispatchObject* as_size_dispatch(PyObject* object) {
    return reinterpret_cast<SizeDispatchObject*>(object);
}

// Reads one source; false if the input lacks it.
bool read_size(const Source& source, PyObject* input, Values& values) {
    if (source.dim == kItself) {
        int overflow = 0;
        if (!PyLong_Check(input)) return false;
        const long long number = PyLong_AsLongLongAndOverflow(input, &overflow);
        if (!overflow) values.push_back(source.reduce(number));
        return !overflow;
    }
    if (!THPVariable_Check(input)) return false;
    const at::Tensor& tensor = THPVariable_Unpack(input);
    if (std::max(source.dim, source.over.value_or(0)) >= tensor.dim()) return false;
    const int64_t *sizes = tensor.sizes().data(), *strides = tensor.strides().data();
    const auto over = source.over;
    const int64_t found = over ? strides[source.dim] - sizes[*over] * strides[*over] : sizes[source.dim];
    values.push_back(source.reduce(found));
    return true;
}

// Reads all sources; false if an input lacks one.
bool read_sizes(const std::vector<Source>& sources, Objects inputs, Values& values) {
    for (const Source& s : sources) {
        if (s.input >= inputs.size() || !read_size(s, inputs[s.input], values)) return false;
    }
    return true;
}

// Raises a Python error for a source that an input lacks.
void raise_missing(const Source& s, Objects inputs) {
    PyObject* item = s.input < inputs.size() ? inputs[s.input] : nullptr;
    if (s.dim == kItself)
        PyErr_Format(PyExc_TypeError, "SizeDispatch: input %zu must be an int of 64 bits, got %s", s.input,
                     item ? Py_TYPE(item)->tp_name : "none");
    else if (item && THPVariable_Check(item))
        PyErr_Format(PyExc_TypeError, "SizeDispatch: input %zu has %zu dimensions, size %lld is asked for",
                     s.input, static_cast<size_t>(THPVariable_Unpack(item).dim()),
                     static_cast<long long>(s.dim));
    else
        PyErr_Format(PyExc_TypeError, "SizeDispatch: input %zu must be a Tensor, got %s", s.input,
                     item ? Py_TYPE(item)->tp_name : "none");
}

PyObject* tuple_of(const Values& values) {
    THPObjectPtr tuple(PyTuple_New(static_cast<Py_ssize_t>(values.size())));
    if (!tuple) return nullptr;
    for (size_t i = 0; i < values.size(); ++i) {
        PyObject* number = PyLong_FromLongLong(values[i]);
        if (!number) return nullptr;
        PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), number);
    }
    return tuple.release();
}

// The instance from `make` for these numbers, or the one cached meanwhile; a new reference, null with a Python error.
// Needs the lock.
PyObject* compiled_instance(SizeDispatchObject* self, const Values& values) {
    Instances& instances = *self->instances;
    if (const Instance* found = instances.find(values)) return Py_NewRef(found->callable);
    THPObjectPtr numbers(tuple_of(values));
    THPObjectPtr make(Py_XNewRef(self->make));
    if (!numbers || !make) return nullptr;
    THPObjectPtr result(PyObject_CallOneArg(make, numbers));
    if (!result) return nullptr;
    if (const Instance* found = instances.find(values))
        return Py_NewRef(found->callable);  // `make` called this for the same sizes
    if (PyTuple_CheckExact(result.get()) && PyTuple_GET_SIZE(result.get()) == 1) {
        PyObject* callable = PyTuple_GET_ITEM(result.get(), 0);
        if (PyCallable_Check(callable)) {
            instances.insert(values, callable);
            return Py_NewRef(callable);
        }
    } else if (PyCallable_Check(result.get())) {
        return result.release();
    }
    PyErr_SetString(PyExc_TypeError, "SizeDispatch: make returned neither a callable nor (callable,)");
    return nullptr;
}

PyObject* on_miss(SizeDispatchObject* self, const Values& values) {
    THPObjectPtr lock(Py_XNewRef(self->lock));
    if (!lock) {
        PyErr_SetString(PyExc_RuntimeError, "SizeDispatch: it was cleared by the garbage collector");
        return nullptr;
    }
    // A Python lock: a thread that waits for it releases the GIL.
    THPObjectPtr acquired(PyObject_CallMethod(lock, "acquire", nullptr));
    if (!acquired) return nullptr;
    PyObject* result = compiled_instance(self, values);
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    THPObjectPtr released(PyObject_CallMethod(lock, "release", nullptr));
    if (!released) PyErr_WriteUnraisable(lock);
    PyErr_Restore(type, value, traceback);
    return result;
}

// The instance for these inputs, a new reference; null with a Python error.
PyObject* instance_for(SizeDispatchObject* self, Objects inputs) {
    try {
        const auto& sources = self->instances->sources;
        Values values;
        if (!read_sizes(sources, inputs, values)) {
            raise_missing(sources[values.size()], inputs);
            return nullptr;
        }
        if (const Instance* found = self->instances->find(values)) return Py_NewRef(found->callable);
        return on_miss(self, values);
    } catch (const std::exception&) {
        torch::translate_exception_to_python(std::current_exception());
        return nullptr;
    }
}

PyObject* size_dispatch_call(PyObject* object, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
    if (PyVectorcall_NARGS(nargsf) != 1 || (kwnames && PyTuple_GET_SIZE(kwnames) != 0) ||
        !PyTuple_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "SizeDispatch: call it with one tuple of tensors");
        return nullptr;
    }
    PyObject* instance = instance_for(as_size_dispatch(object), items_of(args[0]));
    if (!instance) return nullptr;
    PyObject* result = PyObject_Vectorcall(instance, args, 1, nullptr);
    Py_DECREF(instance);
    return result;
}

PyObject* size_dispatch_prepare(PyObject* object, PyObject* numbers) {
    auto* self = as_size_dispatch(object);
    const size_t count = self->instances->sources.size();
    if (!PyTuple_Check(numbers) || static_cast<size_t>(PyTuple_GET_SIZE(numbers)) != count) {
        PyErr_Format(PyExc_TypeError, "SizeDispatch.prepare takes a tuple of %zu numbers", count);
        return nullptr;
    }
    HANDLE_TH_ERRORS
    Values values;
    for (size_t i = 0; i < count; ++i)
        values.push_back(THPUtils_unpackLong(PyTuple_GET_ITEM(numbers, static_cast<Py_ssize_t>(i))));
    if (const Instance* found = self->instances->find(values)) return Py_NewRef(found->callable);
    return on_miss(self, values);
    END_HANDLE_TH_ERRORS
}

PyObject* size_dispatch_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
    PyObject *sources = nullptr, *make = nullptr, *lock = nullptr, *budget = Py_None;
    if (kwargs || !PyArg_ParseTuple(args, "OOO|O:SizeDispatch", &sources, &make, &lock, &budget)) {
        if (kwargs) PyErr_SetString(PyExc_TypeError, "SizeDispatch takes no named arguments");
        return nullptr;
    }
    HANDLE_TH_ERRORS
    auto instances = std::make_unique<Instances>();
    instances->budget = budget_of(budget);
    if (!instances->budget && budget != Py_None) {
        PyErr_SetString(PyExc_TypeError, "SizeDispatch: the fourth argument is an ArenaBudget or None");
        return nullptr;
    }
    for (py::handle h : py::reinterpret_borrow<py::object>(sources)) {
        const auto [input, dim, divisor, over, remainder] =
            h.cast<std::tuple<size_t, int64_t, int64_t, std::optional<int64_t>, bool>>();
        if (divisor < 1 || dim < (over ? 0 : kItself) || over.value_or(0) < 0) {
            PyErr_SetString(PyExc_ValueError,
                            "SizeDispatch: a divisor is at least 1, dimensions are counted from 0");
            return nullptr;
        }
        instances->sources.push_back({input, dim, divisor, over, remainder});
    }
    auto* self = as_size_dispatch(type->tp_alloc(type, 0));
    if (!self) return nullptr;
    self->vectorcall = size_dispatch_call;
    self->instances = instances.release();
    self->make = Py_NewRef(make);
    self->lock = Py_NewRef(lock);
    return reinterpret_cast<PyObject*>(self);
    END_HANDLE_TH_ERRORS
}

int size_dispatch_traverse(PyObject* object, visitproc visit, void* arg) {
    auto* self = as_size_dispatch(object);
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->make);
    Py_VISIT(self->lock);
    if (!self->instances) return 0;
    for (const Instance& i : self->instances->cached()) Py_VISIT(i.callable);
    return 0;
}

int size_dispatch_clear(PyObject* object) {
    auto* self = as_size_dispatch(object);
    Py_CLEAR(self->make);
    Py_CLEAR(self->lock);
    if (self->instances) const InstanceList gone = self->instances->take_all();
    return 0;
}

void size_dispatch_dealloc(PyObject* object) {
    auto* self = as_size_dispatch(object);
    PyTypeObject* type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    if (self->weakrefs) PyObject_ClearWeakRefs(object);
    size_dispatch_clear(object);
    delete self->instances;
    type->tp_free(object);
    Py_DECREF(type);
}

PyObject* size_dispatch_instances(PyObject* object, void*) {
    HANDLE_TH_ERRORS
    py::dict result;
    for (const Instance& i : as_size_dispatch(object)->instances->cached()) {
        auto values = py::reinterpret_steal<py::object>(tuple_of(i.values));
        if (!values) return nullptr;
        result[values] = py::reinterpret_borrow<py::object>(i.callable);
    }
    return result.release().ptr();
    END_HANDLE_TH_ERRORS
}

constexpr const char* kDoc =
    R"(SizeDispatch(sources, make, lock, budget=None): a graph for all sizes, which dispatches calls to instances by size.

d(inputs) reads a number per source (input, dim, divisor, over, remainder), and calls the instance for these numbers with the
same tuple. The number is the size `dim` of input number `input`, or that input itself, an int, if `dim` is -1; divided by
`divisor`, or with `remainder` the remainder. If `over` is not None, it is the difference between the stride of `dim` and the
extent of dimension `over` in memory. Thread-safe.

  make    a callable from the tuple of numbers to (callable,), which is cached, or to a callable that is not cached. The call
          raises what `make` raises, and caches nothing
  lock    an RLock to hold while `make` runs
  budget  an ArenaBudget that has the plans of instances. The 64 most recently used instances are cached; with a budget more,
          while they take less than 64 MiB)";

PyMethodDef size_dispatch_methods[] = {
    {"prepare", size_dispatch_prepare, METH_O,
     "prepare(numbers): the instance for these numbers, compiled if none is cached."},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef size_dispatch_getset[] = {
    {"instances", size_dispatch_instances, nullptr,
     "The cached instances, the most recently used first: a dict from tuples of numbers.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMemberDef size_dispatch_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(SizeDispatchObject, vectorcall), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(SizeDispatchObject, weakrefs), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot size_dispatch_slots[] = {{Py_tp_doc, const_cast<char*>(kDoc)},
                                     {Py_tp_new, reinterpret_cast<void*>(size_dispatch_new)},
                                     {Py_tp_dealloc, reinterpret_cast<void*>(size_dispatch_dealloc)},
                                     {Py_tp_traverse, reinterpret_cast<void*>(size_dispatch_traverse)},
                                     {Py_tp_clear, reinterpret_cast<void*>(size_dispatch_clear)},
                                     {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                                     {Py_tp_methods, size_dispatch_methods},
                                     {Py_tp_getset, size_dispatch_getset},
                                     {Py_tp_members, size_dispatch_members},
                                     {0, nullptr}};

PyType_Spec size_dispatch_spec = {"smelt._native.SizeDispatch", sizeof(SizeDispatchObject), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
                                  size_dispatch_slots};

PyTypeObject* size_dispatch_type = nullptr;

}  // namespace

int init_size_dispatch(PyObject* module) {
    PyObject* type = PyType_FromSpec(&size_dispatch_spec);
    if (!type) return -1;
    size_dispatch_type = reinterpret_cast<PyTypeObject*>(type);  // never freed
    return PyModule_AddObjectRef(module, "SizeDispatch", type);
}

}  // namespace smelt::plan

namespace smelt {

bool is_size_dispatch(PyObject* object) {
    return Py_TYPE(object) == plan::size_dispatch_type;
}

PyObject* kernels_only_instance(PyObject* object, Objects inputs) {
    try {
        plan::Instances& instances = *plan::as_size_dispatch(object)->instances;
        plan::Values values;
        if (!plan::read_sizes(instances.sources, inputs, values)) return nullptr;
        const plan::Instance* found = instances.find(values);
        return found && found->launches_only ? Py_NewRef(found->callable) : nullptr;
    } catch (const std::exception&) {
        return nullptr;
    }
}

}  // namespace smelt
