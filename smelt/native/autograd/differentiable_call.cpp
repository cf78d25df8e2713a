#include "autograd/differentiable_call.h"

#include <c10/core/GradMode.h>

#include <algorithm>

#include "autograd/python_errors.h"
#include "autograd/backward_nodes.h"
#include "bindings/plan.h"

namespace smelt::autograd {

namespace {

// The edges of a call's node; none if the call needs no node.
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

// Detects which of the inputs that may be returned as differentiable outputs the forward modified in place.
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

// Calls a forward that is a Python callable; `owner` keeps the results alive.
Results call_forward(const Spec& spec, PyObject* inputs, THPObjectPtr& owner) {
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

// The results of a forward, and the epilogue's tensors created so far.
struct ForwardResults {
    Results results;
    std::vector<at::Tensor> taken;

    const at::Tensor& output(const Spec& spec, size_t i) const {
        return spec.is_epilogue_output(i) ? taken[i - spec.n_outputs] : results[i].tensor;
    }
};

PyObject* wrapped(const Result& r) {
    return checked(r.object ? Py_NewRef(r.object) : THPVariable_Wrap(r.tensor));
}

// Runs the epilogue steps that follow the first `nodes` nodes.
void take(const Spec& spec, PyObject* inputs, size_t nodes, ForwardResults& outcome) {
    for (const EpilogueStep& t : spec.taken) {
        if (t.after != nodes) continue;
        THPObjectPtr operands(checked(PyTuple_New(static_cast<Py_ssize_t>(t.operands.size()))));
        for (size_t k = 0; k < t.operands.size(); ++k) {
            const auto [is_input, at] = t.operands[k];
            PyObject* operand = is_input ? Py_NewRef(PyTuple_GET_ITEM(inputs, at))
                                : spec.is_epilogue_output(at)
                                    ? THPVariable_Wrap(outcome.taken[at - spec.n_outputs])
                                    : wrapped(outcome.results[at]);
            PyTuple_SET_ITEM(operands.get(), static_cast<Py_ssize_t>(k), checked(operand));
        }
        THPObjectPtr made(checked(PyObject_CallObject(t.make, operands)));
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

// Makes nodes the history of a group's outputs.
class Attach {
  public:
    Attach(const c10::intrusive_ptr<Group>& group, const edge_list& inputs, const ForwardResults& outcome,
           const Versions& versions)
        : group_(group), versions_(versions) {
        for (size_t end = 0; end < group->group().ends.size(); ++end)
            ends_.push_back(
                make_node<CompiledBackward>(edges_of(group->group().ends[end], inputs, outcome), group, end));
        if (!group->group().is_single()) place_ends(outcome);
    }

    void operator()(size_t tangent, const Result& r) {
        const at::Tensor& t = r.tensor;
        if (!t.defined() || is_attached(t) || (r.is_input && !is_written(r))) {
            // Its gradient arrives at an earlier output, or bypasses the node and goes to the tensor's own history.
            if (group_->group().is_single()) ends_[0]->add_input_metadata(Node::undefined_input());
            return;
        }
        const auto node = node_of(tangent);
        made_.push_back(node.get());
        if (r.is_input)
            rebase(t, {node, node->add_input_metadata(t)});
        else
            torch::autograd::set_history(t, node);
    }

    // Whether output number `output` has its history, if it gets one, and that is not one of these nodes.
    bool has_other_history(size_t output, const at::Tensor& t) const {
        if (!t.defined()) return false;
        if (const Node* node = torch::autograd::impl::grad_fn_unsafe(t))
            return std::find(made_.begin(), made_.end(), node) == made_.end();
        const auto& tangents = group_->spec().tangents;
        return std::none_of(tangents.begin(), tangents.end(),
                            [&](const Tangent& k) { return k.output == output; });
    }

    bool is_written(const Result& r) const { return r.is_input && versions_.changed(r.tensor); }

  private:
    // Ends get no gradient themselves. The engine chooses the thread and stream of a node by its input metadata: all
    // ends run on the thread of a device that the group has outputs on, and on the stream of this forward. Compiled
    // autograd reads it too.
    void place_ends(const ForwardResults& outcome) {
        const at::Tensor* on_device = nullptr;
        for (size_t k : group_->group().tangents) {
            const at::Tensor& t = outcome.results[group_->spec().tangents[k].output].tensor;
            if (t.defined() && (!on_device || !t.is_cpu())) on_device = &t;
        }
        for (const NodePtr& end : ends_)
            on_device ? end->add_input_metadata(*on_device)
                      : end->add_input_metadata(Node::undefined_input());
    }

    // The edges of an end. Earlier groups are attached already.
    edge_list edges_of(const End& end, const edge_list& inputs, const ForwardResults& outcome) const {
        edge_list edges(end.edges.size());
        for (size_t i = 0; i < edges.size(); ++i) {
            const size_t k = end.edges[i];
            if (k < inputs.size()) {
                edges[i] = inputs[k];
                continue;
            }
            const Spec& spec = group_->spec();
            const at::Tensor& t = outcome.output(spec, spec.through[k - inputs.size()]);
            if (t.defined() && t.requires_grad()) edges[i] = torch::autograd::impl::gradient_edge(t);
        }
        return edges;
    }

    NodePtr node_of(size_t tangent) {
        if (group_->group().is_single()) return ends_[0];
        edge_list edges;
        for (size_t end = 0; end < ends_.size(); ++end)
            if (group_->group().ends[end].tangents[tangent]) edges.emplace_back(ends_[end], 0);
        return make_node<OutputOf>(std::move(edges), group_, tangent);
    }

    // Whether the tensor is also returned at an earlier position.
    bool is_attached(const at::Tensor& t) const {
        const Node* node = torch::autograd::impl::grad_fn_unsafe(t);
        return node && std::find(made_.begin(), made_.end(), node) != made_.end();
    }

    // Does what an in-place operator does. A view is rebased through its base, which gets a node like that of copy_:
    // its outputs are the gradients of the old and of the new value.
    void rebase(const at::Tensor& t, const Edge& edge) {
        namespace impl = torch::autograd::impl;
        if (!t.is_view()) {
            impl::rebase_history(t, edge);
            return;
        }
        const at::Tensor base(t._base());
        auto copy = make_node<torch::autograd::CopyBackwards>();
        copy->set_next_edges({base.requires_grad() ? impl::gradient_edge(base) : Edge(), edge});
        copy->src_options = t.options();
        copy->add_input_metadata(t);
        // A view recomputes its history if its version changed since the last time; the write itself may have
        // triggered that.
        impl::bump_version(t);
        impl::rebase_history(t, {std::move(copy), 0});
    }

    const c10::intrusive_ptr<Group>& group_;
    const Versions& versions_;
    c10::SmallVector<NodePtr, 2> ends_;
    c10::SmallVector<const Node*, 4> made_;
};

// The memory and version counter that a tensor has now. It requires a gradient if the tensor does: that decides whether
// gradients computed from it may be differentiated.
at::Tensor alias_of(const at::Tensor& t) {
    if (t.key_set().has(c10::DispatchKey::Python)) return t;
    at::Tensor alias = t.tensor_data();
    if (t.requires_grad()) alias.set_requires_grad(true);
    return alias;
}

void save_primal(Group& group, PyObject* item, bool alias) {
    if (THPVariable_Check(item))
        group.save(alias ? alias_of(THPVariable_Unpack(item)) : THPVariable_Unpack(item), false, false);
    else if (PyFloat_CheckExact(item) || PyLong_CheckExact(item))
        group.save(number_tensor(item));
    else
        raise(PyExc_TypeError, std::string("Differentiable: cannot save a ") + Py_TYPE(item)->tp_name);
}

void save(Group& group, const SavedSource& s, PyObject* inputs, const Results& results,
          const Attach& attach) {
    if (s.primal && at::SavedTensorDefaultHooks::get_hooks()) {
        group.save_of_primal();
    } else if (s.kind == SavedSource::Kind::primal || s.kind == SavedSource::Kind::alias) {
        save_primal(group, PyTuple_GET_ITEM(inputs, s.index), s.kind == SavedSource::Kind::alias);
    } else if (s.kind == SavedSource::Kind::temporary) {
        group.save(results[group.spec().n_outputs + s.index].tensor, false, false);
    } else {
        const Result& r = results[s.index];
        const bool written = attach.is_written(r);
        const bool is_other = !r.is_input && attach.has_other_history(s.index, r.tensor) &&
                              !at::SavedTensorDefaultHooks::get_hooks();
        // A leaf would be saved with the `data` that it gets.
        const bool is_leaf = is_other && !r.tensor.requires_grad();
        group.save(is_leaf ? alias_of(r.tensor) : r.tensor, !r.is_input || written,
                   written && r.tensor.is_view());
        if (is_other && s.data != SavedSource::Data::old) group.remember_result(r.tensor);
    }
    if (s.is_recomputed_from && at::SavedTensorDefaultHooks::get_hooks())
        if (PyObject* item = PyTuple_GET_ITEM(inputs, s.index); THPVariable_Check(item))
            group.remember_original(THPVariable_Unpack(item));
}

// State before the forward that a double backward needs.
struct StateBefore {
    std::vector<at::Tensor> copies;  // of `Spec::copied`
    std::shared_ptr<const RandomState> random_state;
};

// `edges`: of the inputs that require gradients. The copy of an input gets the input's history.
StateBefore before_forward(const Spec& spec, PyObject* inputs, const edge_list& edges) {
    StateBefore before;
    if (!spec.draws.empty()) before.random_state = std::make_shared<const RandomState>(spec.draws);
    const c10::AutoGradMode no_grad(false);
    for (size_t i : spec.copied) {
        before.copies.push_back(THPVariable_Unpack(PyTuple_GET_ITEM(inputs, i)).clone());
        for (size_t k = 0; k < edges.size(); ++k)
            if (spec.gradients[k] == i && edges[k].is_valid())
                torch::autograd::impl::set_gradient_edge(before.copies.back(), edges[k]);
    }
    return before;
}

DoubleBackwardInputs double_backward_inputs(const Spec& spec, PyObject* inputs, const ForwardResults& outcome,
                                            const StateBefore& before) {
    DoubleBackwardInputs inputs_of_double_backward;
    inputs_of_double_backward.primals.reserve(static_cast<size_t>(PyTuple_GET_SIZE(inputs)));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(inputs); ++i) {
        PyObject* item = PyTuple_GET_ITEM(inputs, i);
        const bool is_number = !THPVariable_Check(item);
        const bool alone =
            Py_REFCNT(item) == 1;  // a tensor that only C++ refers to also holds its Python object
        const at::Tensor t = is_number ? number_tensor(item) : THPVariable_Unpack(item);
        inputs_of_double_backward.primals.emplace_back(t, is_number || alone);
        inputs_of_double_backward.primals.back().is_number = is_number;
    }
    for (size_t i = 0; i < spec.copied.size(); ++i)
        inputs_of_double_backward.primals[spec.copied[i]] = WeakTensor(before.copies[i], true);
    for (size_t output : spec.through)
        inputs_of_double_backward.through.emplace_back(outcome.output(spec, output), false);
    inputs_of_double_backward.random_state = before.random_state;
    return inputs_of_double_backward;
}

c10::intrusive_ptr<Group> record(const c10::intrusive_ptr<Spec>& spec, const NodeSpec& made_for,
                                 PyObject* inputs, const ForwardResults& outcome,
                                 const edge_list& input_edges, const Versions& versions,
                                 const StateBefore& before) {
    auto group = c10::make_intrusive<Group>(spec, made_for);
    const Results& results = outcome.results;
    Attach attach(group, input_edges, outcome, versions);
    for (size_t k : made_for.tangents) attach(k, results[spec->tangents[k].output]);
    if (made_for.is_single()) {
        const at::Tensor& output = outcome.output(*spec, spec->tangents[made_for.tangents[0]].output);
        if (output.defined()) group->remember_output(output);
    }
    if (spec->double_backward) group->remember(double_backward_inputs(*spec, inputs, outcome, before));
    for (const Bucket& bucket : made_for.buckets)
        for (size_t i : bucket.saved) save(*group, spec->saved[i], inputs, results, attach);
    return group;
}

// The first `n_outputs` results, followed by the epilogue's tensors.
PyObject* as_tuple(const Spec& spec, ForwardResults& outcome) {
    const size_t n = spec.n_outputs;
    THPObjectPtr tuple(checked(PyTuple_New(static_cast<Py_ssize_t>(n + outcome.taken.size()))));
    for (size_t i = 0; i < n; ++i) {
        Result& r = outcome.results[i];
        PyObject* item = r.object             ? Py_NewRef(r.object)
                         : r.tensor.defined() ? THPVariable_Wrap(std::move(r.tensor))
                                              : Py_NewRef(Py_None);
        PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), checked(item));
    }
    for (size_t i = 0; i < outcome.taken.size(); ++i)
        PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(n + i),
                         checked(THPVariable_Wrap(std::move(outcome.taken[i]))));
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
    // Before the forward, which may modify inputs in place and so change their history.
    edge_list edges = gradient_edges(*spec, inputs);
    THPObjectPtr owner;
    auto forward = [&] {
        return spec->forward_is_plan ? run_plan(spec->forward, inputs) : call_forward(*spec, inputs, owner);
    };
    if (edges.empty()) {
        ForwardResults outcome{forward(), std::vector<at::Tensor>(spec->n_epilogue)};
        for (size_t node = 0; !spec->taken.empty() && node <= spec->groups.size(); ++node)
            take(*spec, inputs, node, outcome);
        return as_tuple(*spec, outcome);
    }
    const Versions versions(*spec, inputs);
    const StateBefore before = before_forward(*spec, inputs, edges);
    ForwardResults outcome{forward(), std::vector<at::Tensor>(spec->n_epilogue)};
    // A plan may return a view of its own memory. Autograd must not see it as a view.
    for (const Tangent& t : spec->tangents) {
        if (spec->is_epilogue_output(t.output)) continue;
        Result& r = outcome.results[t.output];
        if (r.is_input || !r.tensor.defined() || !r.tensor.is_view() || looks_at_input(r.tensor, inputs))
            continue;
        r.tensor = r.tensor.detach();
        r.object = nullptr;
    }
    c10::SmallVector<c10::intrusive_ptr<Group>, 2> groups;
    for (const NodeSpec& group : spec->groups) {
        take(*spec, inputs, groups.size(), outcome);
        groups.push_back(record(spec, group, inputs, outcome, edges, versions, before));
    }
    for (auto group = groups.begin(); group != groups.end(); ++group)
        if ((*group)->group().whole) (*group)->set_segments({groups.begin(), group});
    take(*spec, inputs, groups.size(), outcome);
    if (spec->double_backward && !outcome.taken.empty())
        for (const auto& group : groups) group->remember_epilogue(outcome.taken);
    return as_tuple(*spec, outcome);
}

}  // namespace smelt::autograd
