#include "differentiable/differentiable_call.h"

#include "autograd/record_nodes.h"
#include "bindings/plan.h"
#include "differentiable/python_errors.h"

namespace smelt::autograd {

namespace {

CallInputs call_inputs(const Spec& spec, PyObject* inputs) {
    const auto n = static_cast<size_t>(PyTuple_GET_SIZE(inputs));
    CallInputs made(n);
    for (size_t i = 0; i < n; ++i) {
        PyObject* item = PyTuple_GET_ITEM(inputs, i);
        made.is_alone[i] =
            Py_REFCNT(item) == 1;  // a tensor that only C++ refers to also holds its Python object
        if (THPVariable_Check(item)) {
            made.tensors[i] = THPVariable_Unpack(item);
        } else if (PyFloat_CheckExact(item) || PyLong_CheckExact(item) || spec.has_double_backward) {
            made.is_number[i] = 1;
            made.tensors[i] = number_tensor(item);
        }
    }
    return made;
}

// Calls a forward that is a Python callable; `owner` keeps the results alive.
Results call_forward(const PythonSpec& spec, PyObject* inputs, THPObjectPtr& owner) {
    {
        const BelowAutograd beneath;
        owner = checked(PyObject_CallOneArg(spec.forward, inputs));
    }
    owner = checked(PySequence_Fast(owner, "Differentiable: the forward must return a sequence"));
    const auto n = static_cast<size_t>(PySequence_Fast_GET_SIZE(owner.get()));
    if (n < spec.n_results)
        raise(PyExc_RuntimeError, "Differentiable: the forward returned " + std::to_string(n) + " values, " +
                                      std::to_string(spec.n_results) + " are expected");
    Results results(n);
    for (size_t i = 0; i < n; ++i) {
        Result& r = results[i];
        r.object = PySequence_Fast_GET_ITEM(owner.get(), static_cast<Py_ssize_t>(i));
        if (!THPVariable_Check(r.object)) continue;
        r.tensor = THPVariable_Unpack(r.object);
        for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(inputs); ++k)
            r.is_input |= PyTuple_GET_ITEM(inputs, k) == r.object;
    }
    return results;
}

// The results of a forward with their Python objects, and the epilogue's tensors.
struct Outcome : CallResults {
    Outcome(Results&& forward, size_t n_epilogue) {
        taken.resize(n_epilogue);
        results.reserve(forward.size());
        objects.reserve(forward.size());
        for (Result& r : forward) {
            results.push_back({std::move(r.tensor), r.is_input});
            objects.push_back(r.object);
        }
    }

    // Of result `i` with its tensor `t`, a new reference.
    PyObject* wrapped(size_t i, at::Tensor t) const {
        PyObject* object =
            t.defined() ? THPVariable_Wrap(std::move(t)) : Py_NewRef(objects[i] ? objects[i] : Py_None);
        return checked(object);
    }

    c10::SmallVector<PyObject*, 6> objects;  // borrowed
};

// Runs the epilogue steps that follow the first `nodes` nodes.
void take(const PythonSpec& spec, PyObject* inputs, size_t nodes, Outcome& outcome) {
    for (size_t step = 0; step < spec.taken.size(); ++step) {
        const EpilogueStep& t = spec.taken[step];
        if (t.after != nodes) continue;
        THPObjectPtr operands(checked(PyTuple_New(static_cast<Py_ssize_t>(t.operands.size()))));
        for (size_t k = 0; k < t.operands.size(); ++k) {
            const auto [is_input, at] = t.operands[k];
            PyObject* operand = is_input ? Py_NewRef(PyTuple_GET_ITEM(inputs, at))
                                : spec.is_epilogue_output(at)
                                    ? THPVariable_Wrap(outcome.taken[at - spec.n_outputs])
                                    : outcome.wrapped(at, outcome.results[at].tensor);
            PyTuple_SET_ITEM(operands.get(), static_cast<Py_ssize_t>(k), checked(operand));
        }
        THPObjectPtr made(checked(PyObject_CallObject(spec.makes[step], operands)));
        if (THPVariable_Check(made.get())) {
            outcome.taken[t.first] = THPVariable_Unpack(made.get());
            continue;
        }
        made = checked(PySequence_Fast(made, "Differentiable: tensors are to be taken"));
        for (size_t k = 0; k < t.count; ++k)
            outcome.taken[t.first + k] =
                THPVariable_Unpack(PySequence_Fast_GET_ITEM(made.get(), static_cast<Py_ssize_t>(k)));
    }
}

// The first `n_outputs` results, followed by the epilogue's tensors.
PyObject* as_tuple(const Spec& spec, Outcome& outcome) {
    const size_t n = spec.n_outputs;
    THPObjectPtr tuple(checked(PyTuple_New(static_cast<Py_ssize_t>(n + outcome.taken.size()))));
    for (size_t i = 0; i < n; ++i)
        PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i),
                         outcome.wrapped(i, std::move(outcome.results[i].tensor)));
    for (size_t i = 0; i < outcome.taken.size(); ++i)
        PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(n + i),
                         checked(THPVariable_Wrap(std::move(outcome.taken[i]))));
    return tuple.release();
}

}  // namespace

PyObject* call(const c10::intrusive_ptr<PythonSpec>& spec, PyObject* inputs) {
    if (static_cast<size_t>(PyTuple_GET_SIZE(inputs)) < spec->n_inputs)
        raise(PyExc_TypeError, "Differentiable: at least " + std::to_string(spec->n_inputs) +
                                   " inputs expected, got " + std::to_string(PyTuple_GET_SIZE(inputs)));
    THPObjectPtr owner;
    auto forward = [&] {
        return spec->forward_is_plan ? run_plan(spec->forward, inputs) : call_forward(*spec, inputs, owner);
    };
    const auto requires_grad = [&](size_t i) {
        PyObject* item = PyTuple_GET_ITEM(inputs, i);
        return THPVariable_Check(item) && THPVariable_Unpack(item).requires_grad();
    };
    if (!is_differentiated(*spec, requires_grad)) {
        Outcome outcome(forward(), spec->n_epilogue);
        for (size_t node = 0; !spec->taken.empty() && node <= spec->groups.size(); ++node)
            take(*spec, inputs, node, outcome);
        return as_tuple(*spec, outcome);
    }
    const CallInputs read = call_inputs(*spec, inputs);
    const Recorder recorder(spec, read);
    Outcome outcome(forward(), spec->n_epilogue);
    recorder.record(outcome, [&](size_t nodes) { take(*spec, inputs, nodes, outcome); });
    return as_tuple(*spec, outcome);
}

}  // namespace smelt::autograd
