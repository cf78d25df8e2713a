#include "autograd/call.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>

#include "autograd/errors.h"
#include "autograd/node.h"
#include "plan/plan.h"

namespace smelt::autograd {

namespace {

// The edges of the node that a call needs; none if it needs no node.
edge_list gradient_edges(const Spec& spec, PyObject* inputs) {
    edge_list edges;
    if (!c10::GradMode::is_enabled()) return edges;
    auto tensor = [&](size_t i) -> const at::Tensor* {
        PyObject* item = PyTuple_GET_ITEM(inputs, i);
        return THPVariable_Check(item) ? &THPVariable_Unpack(item) : nullptr;
    };
    bool any = false;
    for (size_t i : spec.gradients) {
        const at::Tensor* t = tensor(i);
        if ((any = t && t->requires_grad())) break;
    }
    if (!any) return edges;
    edges.reserve(spec.gradients.size());
    for (size_t i : spec.gradients) {
        const at::Tensor* t = tensor(i);
        edges.push_back(t && t->requires_grad() ? torch::autograd::impl::gradient_edge(*t) : Edge());
    }
    return edges;
}

// Which inputs the forward wrote, of those that it may return as differentiable outputs.
class Versions {
  public:
    Versions(const Spec& spec, PyObject* inputs) {
        if (spec.forward_is_plan)
            for (size_t i : spec.returned_inputs) watch(PyTuple_GET_ITEM(inputs, i));
        else
            for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(inputs); ++i) watch(PyTuple_GET_ITEM(inputs, i));
    }

    bool changed(const at::Tensor& t) const {
        for (const auto& [impl, version] : before_)
            if (impl == t.unsafeGetTensorImpl()) return version != version_of(t);
        return false;
    }

  private:
    void watch(PyObject* item) {
        if (!THPVariable_Check(item)) return;
        const at::Tensor& t = THPVariable_Unpack(item);
        before_.emplace_back(t.unsafeGetTensorImpl(), version_of(t));
    }

    c10::SmallVector<std::pair<const c10::TensorImpl*, uint32_t>, 2> before_;
};

// What the forward, a Python callable, returns; `owner` keeps it alive.
Results call_forward(const Spec& spec, PyObject* inputs, THPObjectPtr& owner) {
    {
        c10::impl::ForceDispatchKeyGuard guard(below_autograd(c10::impl::tls_local_dispatch_key_set()));
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

// Makes the node the history of an output, as its next input.
class Attach {
  public:
    Attach(const c10::intrusive_ptr<Spec>& spec, const NodeSpec& group, CompiledBackward& node,
           NodePtr pointer, const Versions& versions)
        : spec_(spec), group_(group), node_(node), pointer_(std::move(pointer)), versions_(versions) {}

    void operator()(const Result& r) {
        const at::Tensor& t = r.tensor;
        const bool repeated = t.defined() && is_attached(t);  // also returned at an earlier position
        if (!t.defined() || repeated || (r.is_input && !is_written(r)))
            // Its gradient comes by an earlier input, or goes past the node to the tensor's own history.
            node_.add_input_metadata(Node::undefined_input());
        else if (!r.is_input)
            attach(t);
        else
            rebase(t);
    }

    bool is_written(const Result& r) const { return r.is_input && versions_.changed(r.tensor); }

  private:
    void attach(const at::Tensor& t) {
        if (group_.tangents.size() == 1 || !torch::autograd::isDifferentiableType(t.scalar_type())) {
            torch::autograd::set_history(t, pointer_);
            return;
        }
        auto output = make_node<OutputOf>(spec_, Edge(pointer_, node_.add_input_metadata(t)));
        torch::autograd::set_history(t, output);
    }

    bool is_attached(const at::Tensor& t) const {
        const Node* node = torch::autograd::impl::grad_fn_unsafe(t);
        if (!node || node == &node_) return node != nullptr;
        return dynamic_cast<const OutputOf*>(node) && node->next_edge(0).function.get() == &node_;
    }

    // What an in-place operator does. A view is rebased by way of its base, which takes a node like copy_'s: its
    // outputs are the gradients of the old value and of the new.
    void rebase(const at::Tensor& t) {
        namespace impl = torch::autograd::impl;
        const Edge edge(pointer_, node_.add_input_metadata(t));
        if (!t.is_view()) {
            impl::rebase_history(t, edge);
            return;
        }
        const at::Tensor base(t._base());
        auto copy = make_node<torch::autograd::CopyBackwards>();
        copy->set_next_edges({base.requires_grad() ? impl::gradient_edge(base) : Edge(), edge});
        copy->src_options = t.options();
        copy->add_input_metadata(t);
        // A view looks for its history anew if its version is another than when it last did; the write itself may
        // have made it look.
        impl::bump_version(t);
        impl::rebase_history(t, {std::move(copy), 0});
    }

    const c10::intrusive_ptr<Spec>& spec_;
    const NodeSpec& group_;
    CompiledBackward& node_;
    NodePtr pointer_;
    const Versions& versions_;
};

void save_primal(CompiledBackward& node, PyObject* item) {
    if (THPVariable_Check(item))
        node.save(THPVariable_Unpack(item), false, false);
    else if (PyFloat_CheckExact(item) || PyLong_CheckExact(item))
        node.save(number_tensor(item));
    else
        raise(PyExc_TypeError, std::string("Differentiable: cannot save a ") + Py_TYPE(item)->tp_name);
}

// The edges of one of the nodes, of which those before it are attached.
edge_list edges_of(const Spec& spec, const NodeSpec& group, const edge_list& inputs, const Results& results) {
    edge_list edges(group.edges.size());
    for (size_t k = 0; k < edges.size(); ++k) {
        if (!group.edges[k]) continue;
        if (k < inputs.size()) {
            edges[k] = inputs[k];
            continue;
        }
        const at::Tensor& t = results[spec.through[k - inputs.size()]].tensor;
        if (t.defined() && t.requires_grad()) edges[k] = torch::autograd::impl::gradient_edge(t);
    }
    return edges;
}

void record(const c10::intrusive_ptr<Spec>& spec, const NodeSpec& group, PyObject* inputs,
            const Results& results, const edge_list& input_edges, const Versions& versions) {
    const auto node = make_node<CompiledBackward>(edges_of(*spec, group, input_edges, results), spec, group);
    Attach attach(spec, group, *node, node, versions);
    Mask mask(spec->tangents.size());
    for (size_t k : group.tangents) {
        mask[k] = 1;
        attach(results[spec->tangents[k].output]);
    }
    for (Py_ssize_t i = 0; spec->double_backward && i < PyTuple_GET_SIZE(inputs); ++i)
        node->remember(THPVariable_Unpack(PyTuple_GET_ITEM(inputs, i)));
    for (const SavedSource& s : spec->saved) {
        if (!group.whole && !CompiledBackward::is_read(s, mask)) {
            node->skip();
        } else if (s.kind == SavedSource::Kind::primal) {
            save_primal(*node, PyTuple_GET_ITEM(inputs, s.index));
        } else if (s.kind == SavedSource::Kind::temporary) {
            node->save(results[spec->n_outputs + s.index].tensor, false, false);
        } else {
            const Result& r = results[s.index];
            const bool written = attach.is_written(r);
            node->save(r.tensor, !r.is_input || written, written && r.tensor.is_view());
        }
    }
}

PyObject* as_tuple(Results& results, size_t n) {
    THPObjectPtr tuple(checked(PyTuple_New(static_cast<Py_ssize_t>(n))));
    for (size_t i = 0; i < n; ++i) {
        Result& r = results[i];
        PyObject* item = r.object             ? Py_NewRef(r.object)
                         : r.tensor.defined() ? THPVariable_Wrap(std::move(r.tensor))
                                              : Py_NewRef(Py_None);
        PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), checked(item));
    }
    return tuple.release();
}

bool looks_at_input(const at::Tensor& view, PyObject* inputs) {
    const at::Tensor base(view._base());
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(inputs); ++i) {
        PyObject* item = PyTuple_GET_ITEM(inputs, i);
        if (!THPVariable_Check(item)) continue;
        const at::Tensor& t = THPVariable_Unpack(item);
        if (t.is_same(base) || (t.is_view() && t._base().is_same(base))) return true;
    }
    return false;
}

}  // namespace

PyObject* call(const c10::intrusive_ptr<Spec>& spec, PyObject* inputs) {
    if (static_cast<size_t>(PyTuple_GET_SIZE(inputs)) < spec->n_inputs)
        raise(PyExc_TypeError, "Differentiable: at least " + std::to_string(spec->n_inputs) +
                                   " inputs expected, got " + std::to_string(PyTuple_GET_SIZE(inputs)));
    // Before the forward, which may write inputs and so change their history.
    edge_list edges = gradient_edges(*spec, inputs);
    THPObjectPtr owner;
    auto forward = [&] {
        return spec->forward_is_plan ? run_plan(spec->forward, inputs) : call_forward(*spec, inputs, owner);
    };
    if (edges.empty()) {
        Results results = forward();
        return as_tuple(results, spec->n_outputs);
    }
    const Versions versions(*spec, inputs);
    Results results = forward();
    // A plan may look at memory of its own to give an output. To autograd that is no view.
    for (const Tangent& t : spec->tangents) {
        Result& r = results[t.output];
        if (r.is_input || !r.tensor.defined() || !r.tensor.is_view() || looks_at_input(r.tensor, inputs))
            continue;
        r.tensor = r.tensor.detach();
        r.object = nullptr;
    }
    for (const NodeSpec& group : spec->groups) record(spec, group, inputs, results, edges, versions);
    return as_tuple(results, spec->n_outputs);
}

}  // namespace smelt::autograd
