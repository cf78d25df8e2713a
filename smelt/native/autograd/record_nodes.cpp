#include "autograd/record_nodes.h"

#include <algorithm>

#include "autograd/backward_nodes.h"

namespace smelt::autograd {

Versions::Versions(const Spec& spec, const CallInputs& inputs) {
    const auto watch = [&](size_t i) {
        const at::Tensor& t = inputs.tensors[i];
        if (t.defined() && !inputs.is_number[i]) before_.emplace_back(t.unsafeGetTensorImpl(), version_of(t));
    };
    if (spec.returned_inputs)
        for (size_t i : *spec.returned_inputs) watch(i);
    else
        for (size_t i = 0; i < inputs.tensors.size(); ++i) watch(i);
}

namespace {

// The edges of a call's node.
edge_list gradient_edges(const Spec& spec, const CallInputs& inputs) {
    edge_list edges;
    edges.reserve(spec.gradients.size());
    for (size_t i : spec.gradients) {
        const at::Tensor& t = inputs.tensors[i];
        edges.push_back(t.defined() && t.requires_grad() ? torch::autograd::impl::gradient_edge(t) : Edge());
    }
    return edges;
}

// Makes nodes the history of a group's outputs.
class Attach {
  public:
    Attach(const c10::intrusive_ptr<Group>& group, const edge_list& inputs, const CallResults& outcome,
           const Versions& versions)
        : group_(group), versions_(versions) {
        for (size_t end = 0; end < group->group().ends.size(); ++end)
            ends_.push_back(
                make_node<CompiledBackward>(edges_of(group->group().ends[end], inputs, outcome), group, end));
        if (!group->group().is_single()) place_ends(outcome);
    }

    void operator()(size_t tangent, const CallResult& r) {
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

    bool is_written(const CallResult& r) const { return r.is_input && versions_.changed(r.tensor); }

  private:
    // Ends get no gradient themselves. The engine chooses the thread and stream of a node by its input metadata: all
    // ends run on the thread of a device that the group has outputs on, and on the stream of this forward. Compiled
    // autograd reads it too.
    void place_ends(const CallResults& outcome) {
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
    edge_list edges_of(const End& end, const edge_list& inputs, const CallResults& outcome) const {
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

void save(Group& group, const SavedSource& s, const CallInputs& inputs, const CallResults& outcome,
          const Attach& attach) {
    const bool is_of_input = s.kind == SavedSource::Kind::primal || s.kind == SavedSource::Kind::alias;
    if (s.primal && at::SavedTensorDefaultHooks::get_hooks()) {
        group.save_of_primal();
    } else if (is_of_input && inputs.is_number[s.index]) {
        group.save(inputs.tensors[s.index]);
    } else if (is_of_input) {
        const at::Tensor& t = inputs.tensors[s.index];
        TORCH_CHECK_TYPE(t.defined(), "smelt: cannot save input ", s.index,
                         ", which is neither a tensor nor a number");
        group.save(s.kind == SavedSource::Kind::alias ? alias_of(t) : t, false, false);
    } else if (s.kind == SavedSource::Kind::temporary) {
        group.save(outcome.results[group.spec().n_outputs + s.index].tensor, false, false);
    } else {
        const CallResult& r = outcome.results[s.index];
        const bool written = attach.is_written(r);
        const bool is_other = !r.is_input && attach.has_other_history(s.index, r.tensor) &&
                              !at::SavedTensorDefaultHooks::get_hooks();
        // A leaf would be saved with the `data` that it gets.
        const bool is_leaf = is_other && !r.tensor.requires_grad();
        group.save(is_leaf ? alias_of(r.tensor) : r.tensor, !r.is_input || written,
                   written && r.tensor.is_view());
        if (is_other && s.data != SavedSource::Data::old) group.remember_result(r.tensor);
    }
    if (s.is_recomputed_from && at::SavedTensorDefaultHooks::get_hooks() && !inputs.is_number[s.index])
        group.remember_original(inputs.tensors[s.index]);
}

bool looks_at_input(const at::Tensor& view, const CallInputs& inputs) {
    const at::Tensor base(view._base());
    return std::any_of(inputs.tensors.begin(), inputs.tensors.end(), [&](const at::Tensor& t) {
        return t.defined() && (t.is_same(base) || (t.is_view() && t._base().is_same(base)));
    });
}

}  // namespace

Recorder::Recorder(c10::intrusive_ptr<Spec> spec, const CallInputs& inputs)
    : spec_(std::move(spec)),
      inputs_(inputs),
      edges_(gradient_edges(*spec_, inputs)),
      versions_(*spec_, inputs) {
    if (!spec_->draws.empty()) before_.random_state = std::make_shared<const RandomState>(spec_->draws);
    const c10::AutoGradMode no_grad(false);
    for (size_t i : spec_->copied) {
        before_.copies.push_back(inputs_.tensors[i].clone());
        // The copy of an input gets the input's history.
        for (size_t k = 0; k < edges_.size(); ++k)
            if (spec_->gradients[k] == i && edges_[k].is_valid())
                torch::autograd::impl::set_gradient_edge(before_.copies.back(), edges_[k]);
    }
}

DoubleBackwardInputs Recorder::double_backward_inputs(const CallResults& outcome) const {
    DoubleBackwardInputs made;
    made.primals.reserve(inputs_.tensors.size());
    for (size_t i = 0; i < inputs_.tensors.size(); ++i) {
        made.primals.emplace_back(inputs_.tensors[i], inputs_.is_number[i] || inputs_.is_alone[i]);
        made.primals.back().is_number = inputs_.is_number[i];
    }
    for (size_t i = 0; i < spec_->copied.size(); ++i)
        made.primals[spec_->copied[i]] = WeakTensor(before_.copies[i], true);
    for (size_t output : spec_->through) made.through.emplace_back(outcome.output(*spec_, output), false);
    made.random_state = before_.random_state;
    return made;
}

edge_list Recorder::defined_edges(const CallResults& outcome) const {
    edge_list edges = edges_;
    for (size_t i = 0; i < spec_->conditions.size(); ++i)
        if (const auto& output = spec_->conditions[i])
            if (!outcome.results[*output].tensor.item<bool>()) edges[i] = Edge();
    return edges;
}

c10::intrusive_ptr<Group> Recorder::group(const NodeSpec& made_for, const edge_list& edges,
                                          const CallResults& outcome) const {
    auto group = c10::make_intrusive<Group>(spec_, made_for);
    Attach attach(group, edges, outcome, versions_);
    for (size_t k : made_for.tangents) attach(k, outcome.results[spec_->tangents[k].output]);
    if (made_for.is_single()) {
        const at::Tensor& output = outcome.output(*spec_, spec_->tangents[made_for.tangents[0]].output);
        if (output.defined()) group->remember_output(output);
    }
    if (spec_->has_double_backward) group->remember(double_backward_inputs(outcome));
    for (const Bucket& bucket : made_for.buckets)
        for (size_t i : bucket.saved) save(*group, spec_->saved[i], inputs_, outcome, attach);
    return group;
}

void Recorder::record(CallResults& outcome, c10::function_ref<void(size_t)> take) const {
    // A plan may return a view of its own memory. Autograd must not see it as a view.
    for (const Tangent& t : spec_->tangents) {
        if (spec_->is_epilogue_output(t.output)) continue;
        CallResult& r = outcome.results[t.output];
        if (r.is_input || !r.tensor.defined() || !r.tensor.is_view() || looks_at_input(r.tensor, inputs_))
            continue;
        r.tensor = r.tensor.detach();
    }
    const edge_list defined = spec_->conditions.empty() ? edge_list() : defined_edges(outcome);
    const edge_list& edges = spec_->conditions.empty() ? edges_ : defined;
    c10::SmallVector<c10::intrusive_ptr<Group>, 2> groups;
    for (const NodeSpec& made_for : spec_->groups) {
        take(groups.size());
        groups.push_back(group(made_for, edges, outcome));
    }
    for (auto group = groups.begin(); group != groups.end(); ++group)
        if ((*group)->group().whole) (*group)->set_segments({groups.begin(), group});
    take(groups.size());
    if (spec_->has_double_backward && !outcome.taken.empty())
        for (const auto& group : groups) group->remember_epilogue(outcome.taken);
}

}  // namespace smelt::autograd
