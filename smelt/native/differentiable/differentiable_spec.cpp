#include "differentiable/differentiable_spec.h"

#include <algorithm>

#include "autograd/backward_group.h"
#include "differentiable/python_errors.h"
#include "tensor_layout_reader.h"
#include "bindings/plan.h"

namespace smelt::autograd {

PythonSpec::~PythonSpec() {
    if (!Py_IsInitialized()) {  // at interpreter shutdown: leaked
        backwards = nullptr;
        return;
    }
    pybind11::gil_scoped_acquire gil;
    Py_XDECREF(forward);
    Py_XDECREF(compiler);
    Py_XDECREF(lock);
    Py_XDECREF(double_backward);
    Py_XDECREF(substitution);
    for (PyObject* make : makes) Py_XDECREF(make);
    delete_backwards();
}

namespace {

// A Python lock: a thread that waits for it releases the GIL.
class Lock {
  public:
    explicit Lock(PyObject* lock) : lock_(lock) {
        Py_DECREF(checked(PyObject_CallMethod(lock_, "acquire", nullptr)));
    }
    ~Lock() {
        ErrorAside aside;
        PyObject* result = PyObject_CallMethod(lock_, "release", nullptr);
        if (!result) PyErr_WriteUnraisable(lock_);
        Py_XDECREF(result);
    }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

  private:
    PyObject* lock_;
};

void check_backward(const Spec& spec, const Mask& mask, PyObject* callable) {
    if (!is_plan(callable)) {
        if (PyCallable_Check(callable)) return;
        raise(PyExc_TypeError, "Differentiable: the compiled backward is not callable");
    }
    if (!spec.fits(mask, plan_inputs(callable), plan_outputs(callable)))
        raise(PyExc_ValueError, "Differentiable: the backward's plan has other inputs or outputs");
}

PyObject* owned(py::handle h) {
    return h.inc_ref().ptr();
}

class Reader {
  public:
    explicit Reader(PythonSpec& spec) : s_(spec) {}

    void read(const py::dict& spec) {
        check_keys(spec);
        s_.name = spec["name"].cast<std::string>();
        s_.n_outputs = s_.n_results = spec["n_outputs"].cast<size_t>();
        for (py::handle h : spec["gradients"]) s_.gradients.push_back(h.cast<size_t>());
        if (spec.contains("leaves")) s_.n_leaves = spec["leaves"].cast<size_t>();
        if (spec.contains("taken"))
            for (py::handle h : spec["taken"]) s_.taken.push_back(taken(h.cast<py::tuple>()));
        for (py::handle h : spec["differentiable"]) s_.tangents.push_back(tangent(h.cast<py::tuple>()));
        if (spec.contains("through"))
            for (py::handle h : spec["through"]) s_.through.push_back(h.cast<size_t>());
        for (py::handle h : spec["saved"]) s_.add_saved(source(h.cast<py::tuple>()));
        if (spec.contains("conditions")) read_conditions(spec["conditions"]);
        read_groups(spec);
        s_.compiler = owned(callable(spec, "backward"));
        s_.lock = spec.contains("lock") ? owned(spec["lock"])
                                        : py::module_::import("threading").attr("RLock")().release().ptr();
        if (spec.contains("double_backward") && !spec["double_backward"].is_none())
            s_.double_backward = owned(callable(spec, "double_backward"));
        s_.has_double_backward = s_.double_backward;
        if (spec.contains("substitute")) s_.substitution = owned(callable(spec, "substitute"));
        if (spec.contains("draws"))
            for (py::handle h : spec["draws"]) s_.draws.push_back(as_device(h.ptr()).value());
        if (spec.contains("devices"))
            for (py::handle h : spec["devices"]) s_.devices.push_back(as_device(h.ptr()).value());
        if (spec.contains("rewritten"))
            for (py::handle h : spec["rewritten"]) s_.rewritten.push_back(h.cast<size_t>());
        if (spec.contains("layouts"))
            for (py::handle h : spec["layouts"]) s_.layouts.push_back(layout_of_input(h.cast<py::tuple>()));
        if (spec.contains("copied"))
            for (py::handle h : spec["copied"]) s_.copied.push_back(h.cast<size_t>());
        count_inputs();
        s_.forward = owned(callable(spec, "forward"));
        s_.forward_is_plan = is_plan(s_.forward);
        if (s_.forward_is_plan) read_plan();
    }

  private:
    static void check_keys(const py::dict& spec) {
        const py::set needed(py::make_tuple("forward", "n_outputs", "differentiable", "gradients", "saved",
                                            "backward", "name"));
        const py::set optional(py::make_tuple("lock", "double_backward", "through", "groups", "contributors",
                                              "direct", "conflicts", "draws", "rewritten", "copied", "leaves",
                                              "conditions", "taken", "devices", "layouts", "substitute"));
        for (auto item : spec)
            if (!needed.contains(item.first) && !optional.contains(item.first))
                raise(PyExc_TypeError,
                      "Differentiable: unknown key " + py::repr(item.first).cast<std::string>());
        for (py::handle key : needed)
            if (!spec.contains(key))
                raise(PyExc_TypeError,
                      "Differentiable: " + py::repr(key).cast<std::string>() + " is missing");
    }

    void read_groups(const py::dict& spec) {
        const size_t n = s_.tangents.size();
        s_.conflicts =
            spec.contains("conflicts") ? masks(spec["conflicts"]) : std::vector<Mask>(n, Mask(n, 1));
        if (s_.conflicts.size() != n) raise(PyExc_ValueError, "Differentiable: conflicts are per tangent");
        const size_t n_gradients = s_.n_gradients();
        const auto contributors = spec.contains("contributors") ? masks(spec["contributors"])
                                                                : std::vector<Mask>(n_gradients, Mask(n, 1));
        s_.direct = spec.contains("direct") ? masks(spec["direct"]) : contributors;
        if (contributors.size() != n_gradients || s_.direct.size() != n_gradients)
            raise(PyExc_ValueError, "Differentiable: contributors are per gradient");
        if (!spec.contains("groups")) {
            std::vector<size_t> all(n);
            for (size_t k = 0; k < n; ++k) all[k] = k;
            s_.add_group({std::move(all)}, contributors);
            return;
        }
        for (py::handle h : spec["groups"]) {
            const auto parts = h.cast<py::tuple>();
            auto tangents = parts[0].cast<std::vector<size_t>>();
            for (size_t k : tangents)
                if (k >= n) raise(PyExc_ValueError, "Differentiable: no such tangent");
            s_.add_group({std::move(tangents), parts[1].cast<bool>(), parts[2].cast<bool>()}, contributors);
        }
    }

    std::vector<Mask> masks(py::handle lists) const {
        std::vector<Mask> result;
        for (py::handle h : lists) result.push_back(mask(h));
        return result;
    }

    void read_conditions(py::handle temporaries) {
        for (py::handle h : temporaries) {
            s_.conditions.emplace_back();
            if (h.is_none()) continue;
            s_.conditions.back() = s_.n_outputs + h.cast<size_t>();
            s_.n_results = std::max(s_.n_results, *s_.conditions.back() + 1);
        }
        if (!s_.conditions.empty() && s_.conditions.size() != s_.gradients.size())
            raise(PyExc_ValueError, "Differentiable: conditions are per gradient");
    }

    static py::object callable(const py::dict& spec, const char* key) {
        py::object object = spec[key];
        if (!PyCallable_Check(object.ptr()))
            raise(PyExc_TypeError, std::string("Differentiable: ") + key + " must be callable");
        return object;
    }

    Tangent tangent(const py::tuple& t) const {
        Tangent result{t[0].cast<size_t>(), layout(t[1], t[2], t[3])};
        check_output(result.output);
        return result;
    }

    static std::optional<Layout> layout_of_input(const py::tuple& t) {
        return t.empty() ? std::nullopt : std::optional(layout(t[0], t[1], t[2]));
    }

    void check_output(size_t output) const {
        if (output >= s_.n_outputs + s_.n_epilogue) raise(PyExc_ValueError, "Differentiable: no such output");
    }

    EpilogueStep taken(const py::tuple& t) {
        EpilogueStep result{t[0].cast<size_t>(), {}, s_.n_epilogue, t[3].cast<size_t>()};
        for (py::handle h : t[1]) {
            const auto [kind, index] = h.cast<std::pair<std::string, size_t>>();
            if (kind != "input") check_output(index);
            result.operands.push_back({kind == "input", index});
        }
        if (!PyCallable_Check(t[2].ptr()))
            raise(PyExc_TypeError, "Differentiable: what is taken must be callable");
        s_.makes.push_back(owned(t[2]));
        s_.n_epilogue += result.count;
        return result;
    }

    SavedSource source(const py::tuple& t) const {
        const auto kind = t[0].cast<std::string>();
        const auto index = t[1].cast<size_t>();
        const Mask readers = t.size() > 2 ? mask(t[2]) : Mask();
        if (kind == "primal") {
            SavedSource primal{SavedSource::Kind::primal, index, readers, {}, {}};
            if (t.size() > 3) primal.layout = layout(t[3], t[4], t[5]);
            return primal;
        }
        if (kind == "alias") {
            const bool is_recomputed_from = t.size() > 3 && t[3].cast<bool>();
            return {SavedSource::Kind::alias, index, readers, {}, {}, is_recomputed_from};
        }
        if (kind == "temporary") return {SavedSource::Kind::temporary, index, readers, {}, {}};
        if (kind != "output") raise(PyExc_ValueError, "Differentiable: unknown kind of saved value " + kind);
        if (index >= s_.n_outputs) raise(PyExc_ValueError, "Differentiable: no such output");
        SavedSource output{SavedSource::Kind::output, index, readers, {}, {}};
        const auto data = t.size() > 3 ? t[3].cast<std::string>() : std::string("old");
        if (data != "old")
            output.data = data == "new" ? SavedSource::Data::new_data : SavedSource::Data::mixed;
        return output;
    }

    Mask mask(py::handle tangents) const {
        Mask mask(s_.tangents.size());
        for (py::handle k : tangents) {
            if (k.cast<size_t>() >= mask.size()) raise(PyExc_ValueError, "Differentiable: no such tangent");
            mask[k.cast<size_t>()] = 1;
        }
        return mask;
    }

    void count_inputs() {
        for (size_t i : s_.gradients) s_.n_inputs = std::max(s_.n_inputs, i + 1);
        for (size_t i : s_.copied) s_.n_inputs = std::max(s_.n_inputs, i + 1);
        for (const EpilogueStep& t : s_.taken)
            for (const EpilogueStep::Operand& o : t.operands)
                if (o.is_input) s_.n_inputs = std::max(s_.n_inputs, o.index + 1);
        for (const SavedSource& s : s_.saved)
            if (s.kind == SavedSource::Kind::primal || s.kind == SavedSource::Kind::alias)
                s_.n_inputs = std::max(s_.n_inputs, s.index + 1);
    }

    void read_plan() {
        if (plan_inputs(s_.forward) < s_.n_inputs || plan_outputs(s_.forward) < s_.n_results)
            raise(PyExc_ValueError, "Differentiable: the forward's plan has too few inputs or outputs");
        auto& returned = s_.returned_inputs.emplace();
        for (const Tangent& t : s_.tangents) {
            if (s_.is_epilogue_output(t.output)) continue;
            const int64_t input = plan_returned_input(s_.forward, t.output);
            if (input >= 0) returned.push_back(static_cast<size_t>(input));
        }
    }

    PythonSpec& s_;
};

at::Tensor as_gradient(PyObject* item) {
    if (item == Py_None) return {};
    if (!THPVariable_Check(item))
        raise(PyExc_TypeError, std::string("Differentiable: the backward returned a ") +
                                   Py_TYPE(item)->tp_name + " for a gradient");
    return THPVariable_Unpack(item);
}

variable_list gradients_in(THPObjectPtr& result, size_t n_gradients) {
    result = checked(PySequence_Fast(result, "Differentiable: the backward must return a sequence"));
    const auto n = static_cast<size_t>(PySequence_Fast_GET_SIZE(result.get()));
    if (n != n_gradients)
        raise(PyExc_RuntimeError, "Differentiable: the backward returned " + std::to_string(n) +
                                      " gradients, " + std::to_string(n_gradients) + " are expected");
    variable_list gradients;
    gradients.reserve(n);
    for (size_t i = 0; i < n; ++i)
        gradients.push_back(as_gradient(PySequence_Fast_GET_ITEM(result.get(), static_cast<Py_ssize_t>(i))));
    return gradients;
}

// The Python number that the tensor holds.
PyObject* number_object(const at::Tensor& t) {
    return t.scalar_type() == at::kDouble ? PyFloat_FromDouble(*t.const_data_ptr<double>())
                                          : PyLong_FromLongLong(*t.const_data_ptr<int64_t>());
}

}  // namespace

PythonBackward::PythonBackward(Mask mask, Reach reach, std::vector<bool> requested, PyObject* callable,
                               size_t n_gradients)
    : Backward(std::move(mask), reach, std::move(requested)),
      callable(callable),
      is_plan(smelt::is_plan(callable)),
      n_gradients(n_gradients) {}

variable_list PythonBackward::run(variable_list&& arguments, const std::vector<bool>& numbers) const {
    if (is_plan) return run_plan(callable, std::move(arguments));
    pybind11::gil_scoped_acquire gil;
    THPObjectPtr tuple(checked(PyTuple_New(static_cast<Py_ssize_t>(arguments.size()))));
    for (size_t i = 0; i < arguments.size(); ++i) {
        const at::Tensor& t = arguments[i];
        PyObject* item = numbers[i] ? number_object(t) : THPVariable_Wrap(t);
        PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), checked(item));
    }
    arguments.clear();
    THPObjectPtr result;
    {
        const BelowAutograd beneath;
        result = checked(PyObject_CallOneArg(callable, tuple));
    }
    tuple = nullptr;
    return gradients_in(result, n_gradients);
}

const Backward& PythonSpec::compile_backward(const Mask& mask, Reach reach,
                                             const std::vector<bool>& requested) {
    pybind11::gil_scoped_acquire gil;
    Lock held(lock);
    if (const Backward* made = find(mask, reach, requested)) return *made;
    THPObjectPtr defined(checked(PyTuple_New(static_cast<Py_ssize_t>(mask.size()))));
    for (size_t i = 0; i < mask.size(); ++i)
        PyTuple_SET_ITEM(defined.get(), static_cast<Py_ssize_t>(i), PyBool_FromLong(mask[i]));
    THPObjectPtr further, gradients;
    if (reach != Reach::segment || !requested.empty())
        further = checked(PyLong_FromLong(static_cast<long>(reach)));
    if (!requested.empty()) gradients = checked(PyTuple_New(static_cast<Py_ssize_t>(requested.size())));
    for (size_t i = 0; i < requested.size(); ++i)
        PyTuple_SET_ITEM(gradients.get(), static_cast<Py_ssize_t>(i), PyBool_FromLong(requested[i]));
    const bool deterministic = at::globalContext().deterministicAlgorithms();
    THPObjectPtr callable(checked(
        PyObject_CallFunctionObjArgs(compiler, defined.get(), further.get(), gradients.get(), nullptr)));
    check_backward(*this, mask, callable);
    auto made = std::make_unique<PythonBackward>(mask, reach, requested, callable.get(), n_gradients());
    made->deterministic = deterministic;
    callable.release();
    return add(std::move(made));
}

variable_list PythonSpec::differentiate_again(const DoubleBackwardInputs& double_backward_inputs,
                                              const variable_list& primals, const variable_list& through,
                                              const variable_list& tangents) const {
    pybind11::gil_scoped_acquire gil;
    auto pack = [](const variable_list& list, auto item) {
        THPObjectPtr tuple(checked(PyTuple_New(static_cast<Py_ssize_t>(list.size()))));
        for (size_t i = 0; i < list.size(); ++i)
            PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), checked(item(i)));
        return tuple;
    };
    auto tensors = [&](const variable_list& list) {
        return pack(list, [&](size_t i) { return THPVariable_Wrap(list[i]); });
    };
    const THPObjectPtr inputs = pack(primals, [&](size_t i) {
        return double_backward_inputs.primals[i].is_number ? number_object(primals[i])
                                                           : THPVariable_Wrap(primals[i]);
    });
    const THPObjectPtr outputs = tensors(through), tangent_tuple = tensors(tangents);
    const THPObjectPtr state =
        tensors(double_backward_inputs.random_state ? double_backward_inputs.random_state->tensors()
                                                    : variable_list());
    THPObjectPtr result(checked(PyObject_CallFunctionObjArgs(double_backward, inputs.get(), outputs.get(),
                                                             tangent_tuple.get(), state.get(), nullptr)));
    return gradients_in(result, n_gradients() + this->tangents.size());
}

at::Tensor PythonSpec::substitute(size_t i, const std::vector<bool>& requested) const {
    if (!substitution) return {};
    pybind11::gil_scoped_acquire gil;
    const THPObjectPtr index(checked(PyLong_FromSize_t(i)));
    const THPObjectPtr tuple(checked(PyTuple_New(static_cast<Py_ssize_t>(requested.size()))));
    for (size_t k = 0; k < requested.size(); ++k)
        PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(k), PyBool_FromLong(requested[k]));
    THPObjectPtr result(
        checked(PyObject_CallFunctionObjArgs(substitution, index.get(), tuple.get(), nullptr)));
    return as_gradient(result.get());
}

// Calls the method by which a wrapper says what plain tensor it stands for (torch.compile's protocol).
at::Tensor PythonSpec::converted(at::Tensor t) const {
    const pybind11::gil_scoped_acquire gil;
    THPObjectPtr object(checked(THPVariable_Wrap(t)));
    THPObjectPtr convert(PyObject_GetAttrString(object, "__coerce_same_metadata_as_tangent__"));
    if (!convert) {
        PyErr_Clear();
        return t;
    }
    THPObjectPtr plain(checked(PyObject_CallFunction(convert, "OO", Py_None, THPVariableClass)));
    return THPVariable_Check(plain) ? THPVariable_Unpack(plain) : t;
}

c10::intrusive_ptr<PythonSpec> read_spec(PyObject* dict) {
    auto made = c10::make_intrusive<PythonSpec>();
    Reader(*made).read(py::reinterpret_borrow<py::dict>(dict));
    return made;
}

}  // namespace smelt::autograd
