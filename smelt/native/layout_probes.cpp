// Layout probes: smelt tries everything that it reads by memory layout at import, on objects created for that. So a
// build of Python or torch with another layout is detected before it produces a wrong result.
//
// A probe compares what it reads with the result of Python's or torch's own functions for the same object, because
// these were compiled with the object's type.
#include "cpython.h"

#include "differentiable/python_errors.h"
#include "calls/entries.h"
#include "cpython_iterators.h"
#include "cpython_sets.h"
#include "guards/name_lookup.h"
#include "module.h"
#include "torch_autograd.h"

#include <frameobject.h>

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace smelt {
namespace {

void must(bool holds, const char* what) {
    if (!holds) throw std::runtime_error(what);
}

// Checks the result of a function, which may have set a Python error.
THPObjectPtr made(PyObject* x) {
    must(x || PyErr_Occurred(), "nothing is found");
    return THPObjectPtr(autograd::checked(x));
}

void done(int status) {
    if (status < 0) autograd::raise();
}

bool same(PyObject* a, PyObject* b) {
    int equal = a && b ? PyObject_RichCompareBool(a, b, Py_EQ) : 0;
    done(equal);
    return equal;
}

bool is_number(PyObject* x, long number) {
    return x && PyLong_Check(x) && PyLong_AsLong(x) == number;
}

THPObjectPtr name(const char* text) {
    THPObjectPtr x = made(PyUnicode_InternFromString(text));
    PyObject_Hash(x);
    return x;
}

THPObjectPtr new_class(PyObject* base = reinterpret_cast<PyObject*>(&PyBaseObject_Type)) {
    return made(PyObject_CallFunction(reinterpret_cast<PyObject*>(&PyType_Type), "s(O){}", "Probe", base));
}

// An instance with number attributes: `one` is 1, `two` is 2.
THPObjectPtr new_instance() {
    THPObjectPtr x = made(PyObject_CallNoArgs(new_class()));
    for (auto [text, value] : {std::pair("one", 1), std::pair("two", 2)})
        done(PyObject_SetAttr(x, name(text), made(PyLong_FromLong(value))));
    return x;
}

// Checks that `get(name, hint)` finds `one` and `two` but not `three`, with and without a hint.
template <class Get>
void must_read(Get get) {
    Hint hint = 0;
    for (auto [text, value] : {std::pair("two", 2), std::pair("two", 2), std::pair("one", 1)})
        must(is_number(get(name(text), &hint), value), "what they hold is not found");
    must(!get(name("three"), &hint), "what they do not hold is found");
}

void try_instances() {
    THPObjectPtr x = new_instance();
    must(instance_attributes(x).values, "no values are found in the object");
    must_read([&](PyObject* n, Hint* hint) { return instance_get_name(x, n, guards::name_hash(n), hint); });
}

void try_dictionaries() {
    THPObjectPtr x = new_instance();
    THPObjectPtr shared = made(PyObject_GenericGetDict(x, nullptr));
    THPObjectPtr own = made(PyDict_Copy(shared));
    THPObjectPtr mixed = made(PyDict_Copy(shared));
    done(PyDict_SetItem(mixed, made(PyLong_FromLong(0)), Py_None));
    must(instance_attributes(x).dict == shared, "that of an instance is not found");
    for (PyObject* dict : {shared.get(), own.get(), mixed.get()})
        must_read(
            [&](PyObject* n, Hint* hint) { return dict_get_name(dict, n, guards::name_hash(n), hint); });
}

// It is known that 3.13.0 does not report changes through the object: such a dictionary has no version.
void try_marks() {
    THPObjectPtr x = new_instance();
    THPObjectPtr shared = made(PyObject_GenericGetDict(x, nullptr));
    THPObjectPtr own = made(PyDict_Copy(shared));
    DictVersion mark;
    mark.set(own);
    must(mark.holds(own), "one that is as it was counts as changed");
    done(PyDict_SetItem(own, name("one"), Py_None));
    must(!mark.holds(own), "a change is not noticed");
    mark.set(shared);
    done(PyObject_SetAttr(x, name("one"), Py_None));
    must(!mark.holds(shared), "a change of an attribute is not noticed");
    mark.set(own);
    done(PyDict_DelItem(own, name("two")));
    must(!mark.holds(own), "that something is removed is not noticed");
}

void try_class_versions() {
    THPObjectPtr base = new_class();
    THPObjectPtr derived = new_class(base);
    auto* type = reinterpret_cast<PyTypeObject*>(derived.get());
    for (PyObject* changed : {derived.get(), base.get()}) {
        const unsigned int version = assign_class_version(type);
        must(has_class_version(type, version), "a class that is as it was counts as changed");
        done(PyObject_SetAttr(changed, name("one"), Py_None));
        must(!has_class_version(type, version), "a change is not noticed");
    }
    must(made_by_python(type), "a class of Python's counts as one of C's");
    must(!made_by_python(guards::deque_type), "a class of C's counts as one of Python's");
}

void try_code_objects() {
    must(calls::code_extra_round_trips(), "what was stored is not read back");
}

// Small ints are stored at the index of their value.
void try_sets() {
    THPObjectPtr numbers = made(Py_BuildValue("(iii)", 1, 2, 5));
    THPObjectPtr set = made(PySet_New(numbers));
    must(same(made(set_table(set)), made(Py_BuildValue("(ii(iii))", 7, 0, 1, 2, 5))),
         "elements are not found where they are");
    done(PySet_Discard(set, made(PyLong_FromLong(2))));
    must(same(made(set_table(set)), made(Py_BuildValue("(ii(iii))", 7, 0, 1, -3, 5))),
         "it is not seen that one was removed");
    THPObjectPtr copy = made(PySet_New(nullptr));
    must(copy_set(copy, set) && same(copy, set), "a copy has other elements");
}

THPObjectPtr part(PyObject* iterator, const char* what) {
    IteratorPart read = find_iterator_part(name(what));
    return made(read(iterator));
}

// Checks that the items of an iterator are predicted. `over`: what it iterates over, if that can be read.
template <class Make>
void must_foresee(Make make, PyObject* over) {
    THPObjectPtr iterator = made(make()), other = made(make());
    must(!over || keeps(iterator, over), "what one walks over is not found");
    THPObjectPtr items = made(PySequence_Tuple(other));
    const Py_ssize_t count = PyTuple_GET_SIZE(items.get());
    made(PyIter_Next(iterator));
    must(is_number(part(iterator, "left"), count - 1), "how much is left is not found");
    for (Py_ssize_t i = 1; i < count; i++)
        must(same(made(item_ahead(iterator, i - 1)), PyTuple_GET_ITEM(items.get(), i)),
             "what comes next is not found");
    for (Py_ssize_t i = 1; i < count; i++) made(PyIter_Next(iterator));
    must(!PyIter_Next(iterator) && is_number(part(iterator, "left"), 0), "the end is not seen");
}

void try_iterators() {
    THPObjectPtr list = made(Py_BuildValue("[iii]", 5, 6, 7));
    THPObjectPtr dict = made(Py_BuildValue("{s:i,s:i,s:i}", "a", 1, "b", 2, "c", 3));
    THPObjectPtr tuple = made(PyList_AsTuple(list));
    THPObjectPtr ascii = made(PyUnicode_FromString("abc")), text = made(PyUnicode_FromString("\xc4\x80z"));
    for (PyObject* over : {list.get(), tuple.get(), ascii.get(), text.get(), dict.get()})
        must_foresee([&] { return PyObject_GetIter(over); }, over);
    must_foresee([&] { return PyObject_CallMethod(list, "__reversed__", nullptr); }, list);
    for (const char* view : {"values", "items"})
        must_foresee([&] { return PyObject_GetIter(made(PyObject_CallMethod(dict, view, nullptr))); }, dict);
    THPObjectPtr range =
        made(PyObject_CallFunction(reinterpret_cast<PyObject*>(&PyRange_Type), "iii", 5, 20, 4));
    must_foresee([&] { return PyObject_GetIter(range); }, nullptr);
}

void try_nested_iterators() {
    THPObjectPtr inner = made(PyObject_GetIter(made(Py_BuildValue("[iii]", 5, 6, 7))));
    THPObjectPtr numbered =
        made(PyObject_CallFunction(reinterpret_cast<PyObject*>(&PyEnum_Type), "Oi", inner.get(), 40));
    must(keeps(numbered, inner), "the iterator in enumerate is not found");
    made(PyIter_Next(numbered));
    must(is_number(part(numbered, "index"), 41), "the number of enumerate is not found");
    THPObjectPtr both = made(PyTuple_Pack(1, inner.get()));
    for (PyObject* strict : {Py_False, Py_True}) {
        THPObjectPtr named = made(Py_BuildValue("{s:O}", "strict", strict));
        THPObjectPtr zipped = made(PyObject_Call(reinterpret_cast<PyObject*>(&PyZip_Type), both, named));
        THPObjectPtr reduced = made(PyObject_CallMethod(zipped, "__reduce__", nullptr));
        must(keeps(zipped, PyTuple_GET_ITEM(reduced.get(), 1)), "the iterators in zip are not found");
        must(part(zipped, "strict") == strict, "whether zip is strict is not found");
    }
}

// From 3.14 on; earlier versions have `__reduce__`.
void try_itertools() {
    THPObjectPtr module = made(PyImport_ImportModule("itertools"));
    THPObjectPtr over = made(PyObject_GetIter(made(Py_BuildValue("[iii]", 5, 6, 7))));
    auto must_be = [](THPObjectPtr iterator, THPObjectPtr parts) {
        THPObjectPtr found = made(parts_of_itertools(iterator));
        must(found == Py_None || same(found, parts), "what one of itertools holds is not found");
    };
    must_be(made(PyObject_CallMethod(module, "repeat", "ii", 7, 3)), made(Py_BuildValue("((i)i)", 7, 3)));
    must_be(made(PyObject_CallMethod(module, "islice", "Oiii", over.get(), 1, 9, 2)),
            made(Py_BuildValue("((O)iiii)", over.get(), 1, 9, 2, 0)));
    must_be(made(PyObject_CallMethod(module, "takewhile", "OO", Py_None, over.get())),
            made(Py_BuildValue("((O)(O)O)", Py_None, over.get(), Py_False)));
    must_be(made(PyObject_CallMethod(module, "combinations", "(ii)i", 8, 9, 2)),
            made(Py_BuildValue("(((ii))(ii)OiO)", 8, 9, 0, 1, Py_False, 2, Py_False)));
}

THPObjectPtr call(const char* module, const char* function) {
    return made(PyObject_CallMethod(made(PyImport_ImportModule(module)), function, nullptr));
}

// Probes the frame of the Python function that calls this.
void try_frames() {
    PyThreadState* thread = PyThreadState_Get();
    PyFrameObject* object = PyThreadState_GetFrame(thread);
    if (!object) return;
    THPObjectPtr owner(reinterpret_cast<PyObject*>(object));
    THPObjectPtr code(reinterpret_cast<PyObject*>(PyFrame_GetCode(object)));
    Frame* frame = current_frame(thread);
    must(reinterpret_cast<PyObject*>(frame_code(frame)) == code, "the code of one is not found");
    must(PyFunction_GET_CODE(frame_function(frame)) == code, "the function of one is not found");
    must(is_on_thread(frame), "one that runs counts as a generator's");
    must(shown_at(frame) == PyFrame_GetLasti(object), "where one stands is not found");
}

void try_recursion_limit() {
    PyThreadState* thread = PyThreadState_Get();
    const long known = PyLong_AsLong(call("sys", "getrecursionlimit"));
    const int before = set_thread_recursion_limit(thread, static_cast<int>(known) + 1);
    const int set = set_thread_recursion_limit(thread, before);
    must(before == known && set == known + 1, "another limit is found");
}

void try_collector() {
    {
        const CollectorOff off;
        must(!PyGC_IsEnabled(), "it is not switched off");
    }
    constexpr int kMark = -1000000, kFew = 1000;  // the query itself creates objects
    THPObjectPtr module = made(PyImport_ImportModule("gc"));
    int& count = young_count(PyThreadState_Get());
    const int before = std::exchange(count, kMark);
    THPObjectPtr counts(PyObject_CallMethod(module, "get_count", nullptr));
    count = before;
    const long said = counts ? PyLong_AsLong(PyTuple_GET_ITEM(counts.get(), 0)) : 0;
    must(kMark <= said && said < kMark + kFew, "the number of new objects is not found");
}

// ------------------------------------------------------------------------------------------------------ torch

THPObjectPtr of_torch(const char* attribute) {
    return made(PyObject_GetAttrString(made(PyImport_ImportModule("torch")), attribute));
}

void try_torch_objects() {
    must(as_dtype(of_torch("float64")) == c10::kDouble, "a dtype is taken for another");
    must(as_layout(of_torch("sparse_coo")) == c10::kSparse, "a layout is taken for another");
    const auto device = as_device(made(PyObject_CallFunction(of_torch("device"), "s", "cuda:3")));
    must(device == c10::Device(c10::kCUDA, 3), "a device is taken for another");
}

// A CPU tensor with sizes (2, 3) and strides (1, 2).
THPObjectPtr new_tensor(const char* dtype) {
    THPObjectPtr sizes = made(Py_BuildValue("((ii)(ii))", 2, 3, 1, 2));
    THPObjectPtr type = of_torch(dtype);
    THPObjectPtr named = made(Py_BuildValue("{s:O,s:s}", "dtype", type.get(), "device", "cpu"));
    THPObjectPtr t = made(PyObject_Call(of_torch("empty_strided"), sizes, named));
    must(THPVariable_Check(t.get()), "an ordinary one is not known as such");
    return t;
}

at::TensorImpl* impl_of(PyObject* t) {
    return THPVariable_Unpack(t).unsafeGetTensorImpl();
}

bool says(PyObject* t, const char* method) {
    return made(PyObject_CallMethod(t, method, nullptr)) == Py_True;
}

void must_agree_on_sizes(PyObject* t) {
    const auto& own = TensorImplFields::sizes(impl_of(t));
    THPObjectPtr sizes = made(PyObject_CallMethod(t, "size", nullptr));
    THPObjectPtr strides = made(PyObject_CallMethod(t, "stride", nullptr));
    const auto count = static_cast<size_t>(PyTuple_GET_SIZE(sizes.get()));
    must(TensorImplFields::has_own_sizes(impl_of(t)) && own.size() == count,
         "the number of dimensions is another");
    for (size_t i = 0; i < count; i++) {
        must(is_number(PyTuple_GET_ITEM(sizes.get(), i), own.sizes_data()[i]), "sizes are others");
        must(is_number(PyTuple_GET_ITEM(strides.get(), i), own.strides_data()[i]), "strides are others");
    }
}

void try_tensors() {
    THPObjectPtr x = new_tensor("complex64"), other = new_tensor("float64");
    must_agree_on_sizes(x);
    const uint64_t word = TensorImplFields::word(impl_of(x));
    must(static_cast<uint16_t>(word) == static_cast<uint16_t>(c10::kComplexFloat), "the dtype is another");
    // Words of equal tensors may differ in bits that nothing sets: then a guard compares all facts.
    must(word != TensorImplFields::word(impl_of(other)), "two of other dtypes do not differ");
    THPObjectPtr conjugated = made(PyObject_CallMethod(x, "conj", nullptr));
    for (PyObject* t : {x.get(), conjugated.get()})
        must(impl_of(t)->is_conj() == says(t, "is_conj"), "whether one is conjugated is not found");
    for (int writes = 0; writes < 2; writes++) {
        THPObjectPtr version = made(PyObject_GetAttrString(x, "_version"));
        must(is_number(version, version_of(THPVariable_Unpack(x))), "how often one was written is not found");
        made(PyObject_CallMethod(x, "zero_", nullptr));
    }
}

void must_agree_on_grad(PyObject* t, bool expected) {
    const bool said = made(PyObject_GetAttrString(t, "requires_grad")) == Py_True;
    must(said == expected && requires_grad(impl_of(t)) == said, "whether one requires grad is not found");
    must(!is_dual(impl_of(t)), "one has a tangent that nobody gave it");
}

void try_autograd() {
    const c10::AutoGradMode on(true);
    THPObjectPtr leaf = new_tensor("float64");
    must_agree_on_grad(leaf, false);
    made(PyObject_CallMethod(leaf, "requires_grad_", nullptr));
    must_agree_on_grad(leaf, true);
    must_agree_on_grad(made(PyNumber_Negative(leaf)), true);
    must(!backward_hooks(leaf) && !post_accumulate_grad_hooks(leaf), "one has hooks that nobody gave it");
    THPObjectPtr hooks = made(PyDict_New());
    done(PyObject_SetAttrString(leaf, "_backward_hooks", hooks));
    done(PyObject_SetAttrString(leaf, "_post_accumulate_grad_hooks", hooks));
    must(backward_hooks(leaf) == hooks && post_accumulate_grad_hooks(leaf) == hooks, "hooks are not found");
}

// ----------------------------------------------------------------------------------------------------- the table

struct Probe {
    const char* name;
    void (*run)();
};

constexpr Probe kProbes[] = {
    {"attributes of instances", try_instances},
    {"dictionaries", try_dictionaries},
    {"changes of dictionaries", try_marks},
    {"versions of classes", try_class_versions},
    {"data of code objects", try_code_objects},
    {"sets", try_sets},
    {"iterators", try_iterators},
    {"enumerate and zip", try_nested_iterators},
    {"iterators of itertools", try_itertools},
    {"frames", try_frames},
    {"the recursion limit", try_recursion_limit},
    {"the garbage collector", try_collector},
    {"dtypes, devices and layouts", try_torch_objects},
    {"tensors", try_tensors},
    {"autograd's metadata", try_autograd},
};

// The error of a probe; None if it succeeds.
PyObject* outcome(const Probe& probe) {
    try {
        const c10::InferenceMode ordinary(false);
        probe.run();
        Py_RETURN_NONE;
    } catch (const std::exception& error) {
        PyErr_Clear();
        const std::string what = error.what();
        return PyUnicode_FromString(what.substr(0, what.find('\n')).c_str());
    }
}

PyObject* py_probe(PyObject*, PyObject*) {
    PyObject* outcomes = PyDict_New();
    for (const Probe& probe : kProbes) {
        PyObject* said = outcomes ? outcome(probe) : nullptr;
        if (!said || PyDict_SetItemString(outcomes, probe.name, said) < 0) Py_CLEAR(outcomes);
        Py_XDECREF(said);
    }
    return outcomes;
}

PyMethodDef layout_probes_functions[] = {
    {"probe", py_probe, METH_NOARGS,
     "probe(): tries everything that is read by memory layout: a dict from names to None, or an error text."},
    {}};

}  // namespace

int init_layout_probes(PyObject* module) {
    return PyModule_AddFunctions(module, layout_probes_functions);
}

}  // namespace smelt
