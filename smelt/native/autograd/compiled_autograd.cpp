// Compiled autograd: torch records the nodes that an engine call would run as one graph, which it compiles.
//
// There, a group is one operator with the tangents and the saved values as operands. A compiler of that graph calls it with
// real tensors, as it does C++ nodes that are not marked as traceable.
#include "torch_compiled_autograd.h"

#include "autograd/backward_nodes.h"

namespace smelt::autograd {

namespace {

// The operator: `operands` are the saved values that the tangents in `mask` read; `like` has all the others.
variable_list run_operator(const Group& like, const Mask& mask, const variable_list& tangents,
                           const ivalue_list& operands) {
    const c10::AutoGradMode no_grad(false);
    variable_list by_tangent(mask.size());
    size_t at = 0;
    for (size_t k = 0; k < mask.size(); ++k)
        if (mask[k]) by_tangent[k] = tangents[at++];
    variable_list saved;
    for (const at::IValue& operand : operands) saved.push_back(operand.toTensor());
    return like.compute_from(mask, std::move(saved), std::move(by_tangent));
}

}  // namespace

void Group::collect(CompiledNodeArgs& args, size_t node) {
    traced_ = {};
    args.collect(static_cast<uint64_t>(spec_->serial));
    args.collect(static_cast<uint64_t>(node));
}

void Group::collect_saved(CompiledNodeArgs& args) const {
    for (const Bucket& bucket : group_.buckets) {
        // What only dropped outputs would have read is freed.
        bool is_read = group_.is_single();
        for (size_t k = 0; k < bucket.readers.size(); ++k) is_read |= bucket.readers[k] && outputs_[k];
        args.collect(static_cast<uint64_t>(is_read));
        for (size_t i = bucket.first; is_read && i < bucket.first + bucket.saved.size(); ++i) {
            const SavedValue& s = saved_[i];
            if (!s.number.defined())
                args.collect(s.variable, s.is_output);
            else if (s.number.scalar_type() == at::kDouble)
                args.collect(*s.number.const_data_ptr<double>());
            else
                args.collect(*s.number.const_data_ptr<int64_t>());
        }
    }
}

void Group::trace_arrival(size_t tangent, const at::Tensor& gradient) {
    traced_.tangents.resize(spec_->tangents.size());
    traced_.tangents[tangent] = gradient;
}

variable_list Group::trace(size_t end, SwapSavedVariables& swap) {
    const size_t n = spec_->tangents.size();
    traced_.tangents.resize(n);
    Mask mask(n);
    for (size_t k = 0; k < n; ++k) mask[k] = traced_.tangents[k].defined();
    // An earlier end may have been recorded before all tangents of this one arrived.
    bool is_covered = !traced_.gradients.empty();
    for (size_t k = 0; is_covered && k < n; ++k)
        is_covered = !(mask[k] && group_.ends[end].tangents[k]) || traced_.mask[k];
    if (!is_covered && count_defined(mask)) {
        trace_operator(mask, swap);
        traced_.mask = mask;
    }
    variable_list gradients(group_.ends[end].edges.size());
    if (traced_.gradients.empty()) return gradients;
    for (size_t i = 0; i < gradients.size(); ++i) gradients[i] = traced_.gradients[group_.ends[end].edges[i]];
    return gradients;
}

void Group::trace_operator(const Mask& mask, SwapSavedVariables& swap) {
    auto like = c10::make_intrusive<Group>(spec_, group_);  // the saved values that are no operands
    std::vector<at::IValue> operands;
    for (const Bucket& bucket : group_.buckets) {
        for (size_t i = bucket.first; i < bucket.first + bucket.saved.size(); ++i) {
            SavedValue& s = saved_[i];
            like->saved_.push_back({{}, s.number, false, s.layout});
            if (s.number.defined() || !intersect(bucket.readers, mask)) continue;
            swap.before(s.variable);
            operands.emplace_back(s.variable.unpack());
            swap.after(s.variable);
        }
    }
    variable_list tangents;
    for (const at::Tensor& t : traced_.tangents)
        if (t.defined()) tangents.push_back(t);
    std::vector<size_t> reached;  // the gradients that the operator computes
    std::vector<size_t> others;   // those to which the gradients of cuts flow on
    edge_list edges;
    for (size_t e = 0; e < ends_.size(); ++e) {
        for (size_t i = 0; ends_[e] && i < group_.ends[e].edges.size(); ++i) {
            const size_t gradient = group_.ends[e].edges[i];
            if (!intersect(spec_->direct[gradient], mask)) {
                others.push_back(gradient);
                continue;
            }
            reached.push_back(gradient);
            edges.push_back(ends_[e]->next_edge(i));
        }
    }
    const variable_list computed = call_in_graph(
        swap, spec_->name, tangents, operands, edges,
        [like, mask, reached, others](const variable_list& tangents, const ivalue_list& operands) {
            variable_list all = run_operator(*like, mask, tangents, operands), gradients;
            for (size_t i : reached) gradients.push_back(std::move(all[i]));
            for (size_t i : others)
                TORCH_CHECK_NOT_IMPLEMENTED(
                    !all[i].defined(),
                    "smelt: compiled autograd of gradients that only several outputs define together; "
                    "use smelt.disable on the function, or backend='eager'");
            return gradients;
        });
    traced_.gradients.resize(n_gradients());
    for (size_t i = 0; i < reached.size(); ++i) traced_.gradients[reached[i]] = computed[i];
}

variable_list Group::compute_from(const Mask& mask, variable_list&& read, variable_list&& tangents) const {
    Group group(spec_, group_);
    size_t at = 0;
    for (const Bucket& bucket : group_.buckets) {
        const bool is_read = intersect(bucket.readers, mask);
        for (size_t i = bucket.first; i < bucket.first + bucket.saved.size(); ++i) {
            const SavedValue& s = saved_[i];
            group.saved_.push_back({{}, s.number, false, s.layout});
            if (!s.number.defined() && is_read)
                group.saved_.back().variable = SavedVariable(read[at++], false);
        }
    }
    return group.compute(mask, std::move(tangents), Mask(mask.size()), NodePtr());
}

void CompiledBackward::compiled_args(CompiledNodeArgs& args) const {
    group_->collect(args, end_);
    group_->collect_saved(args);
}

variable_list CompiledBackward::apply_with_saved(const variable_list& inputs, SwapSavedVariables& swap) {
    if (group_->group().is_single()) group_->trace_arrival(group_->group().tangents[0], inputs[0]);
    return group_->trace(end_, swap);
}

void OutputOf::compiled_args(CompiledNodeArgs& args) const {
    group_->collect(args, tangent_);
}

variable_list OutputOf::apply_with_saved(const variable_list& inputs, SwapSavedVariables&) {
    group_->trace_arrival(tangent_, inputs[0]);
    return variable_list(num_outputs());
}

}  // namespace smelt::autograd
