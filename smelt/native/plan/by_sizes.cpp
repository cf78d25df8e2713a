// smelt._native.BySizes: a graph for any sizes. A call looks at the sizes of its inputs and runs the instance that is made
// for these numbers; there it is what the instance is: the same tuple goes in, the same comes out.
//
// The instances that were used last are kept. What always holds: `kept` changes only with the GIL held and with no Python
// code in between, the instance used last is its first, and a call holds a reference to what it runs, so that others may
// push it out meanwhile. Instances are made under a lock, one at a time.
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "module.h"
#include "plan/plan.h"
#include "torch_python.h"
// After Python.h, which it does not include itself.
#include <structmember.h>

namespace smelt::plan {
namespace {

// Instances. Making one takes milliseconds.
constexpr size_t kKept = 64;

// The size of dimension `dim` of an input, or kItself: the input, an int. With `over`, how much larger the stride of `dim` is
// than dimension `over` in memory. Of that the quotient by `divisor`, or, if `rest`, what is left.
struct Source {
    size_t input;
    int64_t dim, divisor;
    std::optional<int64_t> over;
    bool rest;

    int64_t part_of(int64_t number) const { return rest ? number % divisor : number / divisor; }
};
constexpr int64_t kItself = -1;

using Values = c10::SmallVector<int64_t, 8>;  // one for each source

// Whether it is a plan of nothing but kernels, or a Differentiable whose forward is one.
bool calls_kernels_only(PyObject* callable) {
    if (is_plan(callable)) return plan_launches_only(callable);
    THPObjectPtr forward(PyObject_GetAttrString(callable, "forward"));
    if (!forward) PyErr_Clear();
    return forward && is_plan(forward) && plan_launches_only(forward);
}

struct Instance {
    Values values;
    PyObject *callable, *plans;  // a list of the plans that hold memory for it between calls
    bool launches_only;

    Instance(const Values& values, PyObject* callable, PyObject* plans)
        : values(values),
          callable(Py_NewRef(callable)),
          plans(Py_NewRef(plans)),
          launches_only(calls_kernels_only(callable)) {}
    Instance(const Instance&) = delete;
    Instance& operator=(const Instance&) = delete;
    ~Instance() {
        Py_DECREF(callable);
        Py_DECREF(plans);
    }
};

using Kept = std::vector<std::unique_ptr<Instance>>;

struct Instances {
    std::vector<Source> sources;
    Kept kept;
};

struct BySizesObject {
    PyObject_HEAD vectorcallfunc vectorcall;
    Instances* instances;
    PyObject *make, *lock;  // null once the garbage collector has cleared it
    PyObject* weakrefs;
};

BySizesObject* as_by_sizes(PyObject* object) {
    return reinterpret_cast<BySizesObject*>(object);
}

template <class F>
void for_each_plan(const Instance& instance, F f) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(instance.plans); ++i) {
        PyObject* plan = PyList_GET_ITEM(instance.plans, i);
        if (is_plan(plan)) f(plan);
    }
}

size_t arena_bytes(const Instance& instance) {
    size_t bytes = 0;
    for_each_plan(instance, [&](PyObject* plan) { bytes += plan_arena_bytes(plan); });
    return bytes;
}

// All instances together hold as much memory between calls as two of the largest one: that of those used last.
void trim(const Kept& kept) {
    size_t largest = 0, held = 0;
    for (const auto& i : kept) largest = std::max(largest, arena_bytes(*i));
    for (const auto& i : kept) {
        held += arena_bytes(*i);
        if (held > 2 * largest) for_each_plan(*i, drop_idle_arenas);
    }
}

// The instance for these numbers, which is the first from now on; null where none is kept.
Instance* find(Kept& kept, const Values& values) {
    for (auto i = kept.begin(); i != kept.end(); ++i) {
        if ((*i)->values != values) continue;
        if (i != kept.begin()) {
            std::rotate(kept.begin(), i, i + 1);
            trim(kept);
        }
        return kept.front().get();
    }
    return nullptr;
}

// Whether it is there.
bool read_size(const Source& source, PyObject* input, Values& values) {
    if (source.dim == kItself) {
        int overflow = 0;
        if (!PyLong_Check(input)) return false;
        const long long number = PyLong_AsLongLongAndOverflow(input, &overflow);
        if (!overflow) values.push_back(source.part_of(number));
        return !overflow;
    }
    if (!THPVariable_Check(input)) return false;
    const at::Tensor& tensor = THPVariable_Unpack(input);
    if (std::max(source.dim, source.over.value_or(0)) >= tensor.dim()) return false;
    const int64_t *sizes = tensor.sizes().data(), *strides = tensor.strides().data();
    const auto over = source.over;
    const int64_t found = over ? strides[source.dim] - sizes[*over] * strides[*over] : sizes[source.dim];
    values.push_back(source.part_of(found));
    return true;
}

// Whether all sources are there.
bool read_sizes(const std::vector<Source>& sources, Objects inputs, Values& values) {
    for (const Source& s : sources) {
        if (s.input >= inputs.size() || !read_size(s, inputs[s.input], values)) return false;
    }
    return true;
}

// A Python error for a source that is not there.
void raise_missing(const Source& s, Objects inputs) {
    PyObject* item = s.input < inputs.size() ? inputs[s.input] : nullptr;
    if (s.dim == kItself)
        PyErr_Format(PyExc_TypeError, "BySizes: input %zu must be an int of 64 bits, got %s", s.input,
                     item ? Py_TYPE(item)->tp_name : "none");
    else if (item && THPVariable_Check(item))
        PyErr_Format(PyExc_TypeError, "BySizes: input %zu has %zu dimensions, size %lld is asked for",
                     s.input, static_cast<size_t>(THPVariable_Unpack(item).dim()),
                     static_cast<long long>(s.dim));
    else
        PyErr_Format(PyExc_TypeError, "BySizes: input %zu must be a Tensor, got %s", s.input,
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

void keep(Kept& kept, const Values& values, PyObject* callable, PyObject* plans) {
    kept.insert(kept.begin(), std::make_unique<Instance>(values, callable, plans));
    std::unique_ptr<Instance> last;  // freed when all is in order again
    if (kept.size() > kKept) {
        last = std::move(kept.back());
        kept.pop_back();
    }
    trim(kept);
}

// What `make` gives for these numbers, or what is kept for them by now; a new reference, null with a Python error. Needs
// the lock.
PyObject* made(BySizesObject* self, const Values& values) {
    auto& kept = self->instances->kept;
    if (Instance* found = find(kept, values)) return Py_NewRef(found->callable);
    THPObjectPtr numbers(tuple_of(values));
    THPObjectPtr make(Py_XNewRef(self->make));
    if (!numbers || !make) return nullptr;
    THPObjectPtr result(PyObject_CallOneArg(make, numbers));
    if (!result) return nullptr;
    if (Instance* found = find(kept, values))
        return Py_NewRef(found->callable);  // it called this for the same sizes
    if (PyTuple_CheckExact(result.get()) && PyTuple_GET_SIZE(result.get()) == 2) {
        PyObject *callable = PyTuple_GET_ITEM(result.get(), 0), *plans = PyTuple_GET_ITEM(result.get(), 1);
        if (PyCallable_Check(callable) && PyList_CheckExact(plans)) {
            keep(kept, values, callable, plans);
            return Py_NewRef(callable);
        }
    } else if (PyCallable_Check(result.get())) {
        return result.release();
    }
    PyErr_SetString(PyExc_TypeError, "BySizes: make gave neither a callable nor (callable, list of plans)");
    return nullptr;
}

PyObject* missed(BySizesObject* self, const Values& values) {
    THPObjectPtr lock(Py_XNewRef(self->lock));
    if (!lock) {
        PyErr_SetString(PyExc_RuntimeError, "BySizes: it was cleared by the garbage collector");
        return nullptr;
    }
    // A lock of Python's: who waits for it gives the GIL away.
    THPObjectPtr acquired(PyObject_CallMethod(lock, "acquire", nullptr));
    if (!acquired) return nullptr;
    PyObject* result = made(self, values);
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    THPObjectPtr released(PyObject_CallMethod(lock, "release", nullptr));
    if (!released) PyErr_WriteUnraisable(lock);
    PyErr_Restore(type, value, traceback);
    return result;
}

// The instance for these inputs, a new reference; null with a Python error.
PyObject* instance_for(BySizesObject* self, Objects inputs) {
    try {
        const auto& sources = self->instances->sources;
        Values values;
        if (!read_sizes(sources, inputs, values)) {
            raise_missing(sources[values.size()], inputs);
            return nullptr;
        }
        if (Instance* found = find(self->instances->kept, values)) return Py_NewRef(found->callable);
        return missed(self, values);
    } catch (const std::exception&) {
        torch::translate_exception_to_python(std::current_exception());
        return nullptr;
    }
}

PyObject* by_sizes_call(PyObject* object, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
    if (PyVectorcall_NARGS(nargsf) != 1 || (kwnames && PyTuple_GET_SIZE(kwnames) != 0) ||
        !PyTuple_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "BySizes: call it with one tuple of tensors");
        return nullptr;
    }
    PyObject* instance = instance_for(as_by_sizes(object), items_of(args[0]));
    if (!instance) return nullptr;
    PyObject* result = PyObject_Vectorcall(instance, args, 1, nullptr);
    Py_DECREF(instance);
    return result;
}

PyObject* by_sizes_prepare(PyObject* object, PyObject* numbers) {
    auto* self = as_by_sizes(object);
    const size_t count = self->instances->sources.size();
    if (!PyTuple_Check(numbers) || static_cast<size_t>(PyTuple_GET_SIZE(numbers)) != count) {
        PyErr_Format(PyExc_TypeError, "BySizes.prepare takes a tuple of %zu numbers", count);
        return nullptr;
    }
    HANDLE_TH_ERRORS
    Values values;
    for (size_t i = 0; i < count; ++i)
        values.push_back(THPUtils_unpackLong(PyTuple_GET_ITEM(numbers, static_cast<Py_ssize_t>(i))));
    if (Instance* found = find(self->instances->kept, values)) return Py_NewRef(found->callable);
    return missed(self, values);
    END_HANDLE_TH_ERRORS
}

PyObject* by_sizes_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
    PyObject *sources = nullptr, *make = nullptr, *lock = nullptr;
    if (kwargs || !PyArg_ParseTuple(args, "OOO:BySizes", &sources, &make, &lock)) {
        if (kwargs) PyErr_SetString(PyExc_TypeError, "BySizes takes no named arguments");
        return nullptr;
    }
    HANDLE_TH_ERRORS
    auto instances = std::make_unique<Instances>();
    for (py::handle h : py::reinterpret_borrow<py::object>(sources)) {
        const auto [input, dim, divisor, over, rest] =
            h.cast<std::tuple<size_t, int64_t, int64_t, std::optional<int64_t>, bool>>();
        if (divisor < 1 || dim < (over ? 0 : kItself) || over.value_or(0) < 0) {
            PyErr_SetString(PyExc_ValueError,
                            "BySizes: a divisor is at least 1, dimensions are counted from 0");
            return nullptr;
        }
        instances->sources.push_back({input, dim, divisor, over, rest});
    }
    auto* self = as_by_sizes(type->tp_alloc(type, 0));
    if (!self) return nullptr;
    self->vectorcall = by_sizes_call;
    self->instances = instances.release();
    self->make = Py_NewRef(make);
    self->lock = Py_NewRef(lock);
    return reinterpret_cast<PyObject*>(self);
    END_HANDLE_TH_ERRORS
}

int by_sizes_traverse(PyObject* object, visitproc visit, void* arg) {
    auto* self = as_by_sizes(object);
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->make);
    Py_VISIT(self->lock);
    if (!self->instances) return 0;
    for (const auto& i : self->instances->kept) {
        Py_VISIT(i->callable);
        Py_VISIT(i->plans);
    }
    return 0;
}

int by_sizes_clear(PyObject* object) {
    auto* self = as_by_sizes(object);
    Py_CLEAR(self->make);
    Py_CLEAR(self->lock);
    if (self->instances) const Kept gone = std::exchange(self->instances->kept, {});
    return 0;
}

void by_sizes_dealloc(PyObject* object) {
    auto* self = as_by_sizes(object);
    PyTypeObject* type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    if (self->weakrefs) PyObject_ClearWeakRefs(object);
    by_sizes_clear(object);
    delete self->instances;
    type->tp_free(object);
    Py_DECREF(type);
}

PyObject* by_sizes_instances(PyObject* object, void*) {
    HANDLE_TH_ERRORS
    py::dict result;
    for (const auto& i : as_by_sizes(object)->instances->kept) {
        auto values = py::reinterpret_steal<py::object>(tuple_of(i->values));
        if (!values) return nullptr;
        result[values] = py::reinterpret_borrow<py::object>(i->callable);
    }
    return result.release().ptr();
    END_HANDLE_TH_ERRORS
}

constexpr const char* kDoc =
    R"(BySizes(sources, make, lock): a graph for any sizes, called as its instances are.

b(inputs) reads a number for each (input, dim, divisor, over, rest) of `sources`, and calls the instance for these numbers with
the same tuple. It is the size `dim` of input number `input`, or that input itself, an int, where `dim` is -1; divided by
`divisor`, or, if `rest`, what that leaves. Where `over` is not None, it is how much larger the stride of `dim` is than
dimension `over` in memory. Safe to call from several threads at once.

  make   a callable from the tuple of numbers to (callable, list of plans), which is kept (the 64 used last are), or to a
         callable that is not. The list may grow later: all instances together hold as much of its plans' memory between
         calls as two of the largest instance. What it raises is raised by the call, and nothing is kept
  lock   an RLock to hold while `make` runs)";

PyMethodDef by_sizes_methods[] = {{"prepare", by_sizes_prepare, METH_O,
                                   "prepare(numbers): the instance for these, which is made if none is."},
                                  {nullptr, nullptr, 0, nullptr}};

PyGetSetDef by_sizes_getset[] = {
    {"instances", by_sizes_instances, nullptr,
     "The instances that are kept, the last used first: a dict from tuples of numbers.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMemberDef by_sizes_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(BySizesObject, vectorcall), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(BySizesObject, weakrefs), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot by_sizes_slots[] = {{Py_tp_doc, const_cast<char*>(kDoc)},
                                {Py_tp_new, reinterpret_cast<void*>(by_sizes_new)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(by_sizes_dealloc)},
                                {Py_tp_traverse, reinterpret_cast<void*>(by_sizes_traverse)},
                                {Py_tp_clear, reinterpret_cast<void*>(by_sizes_clear)},
                                {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                                {Py_tp_methods, by_sizes_methods},
                                {Py_tp_getset, by_sizes_getset},
                                {Py_tp_members, by_sizes_members},
                                {0, nullptr}};

PyType_Spec by_sizes_spec = {"smelt._native.BySizes", sizeof(BySizesObject), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
                             by_sizes_slots};

PyTypeObject* by_sizes_type = nullptr;

}  // namespace

int init_by_sizes(PyObject* module) {
    PyObject* type = PyType_FromSpec(&by_sizes_spec);
    if (!type) return -1;
    by_sizes_type = reinterpret_cast<PyTypeObject*>(type);  // and kept for ever
    return PyModule_AddObjectRef(module, "BySizes", type);
}

}  // namespace smelt::plan

namespace smelt {

bool is_by_sizes(PyObject* object) {
    return Py_TYPE(object) == plan::by_sizes_type;
}

PyObject* launching_instance(PyObject* object, Objects inputs) {
    try {
        plan::Instances& instances = *plan::as_by_sizes(object)->instances;
        plan::Values values;
        if (!plan::read_sizes(instances.sources, inputs, values)) return nullptr;
        const plan::Instance* found = plan::find(instances.kept, values);
        return found && found->launches_only ? Py_NewRef(found->callable) : nullptr;
    } catch (const std::exception&) {
        return nullptr;
    }
}

}  // namespace smelt
