#include "exported/program_gradients.h"

#include <ATen/ops/add.h>

#include "include/smelt/program.h"

namespace smelt::exported {

using autograd::Backward;
using autograd::Mask;
using autograd::Reach;
using autograd::SavedSource;

std::shared_ptr<plan::Plan> BackwardPlans::at(const Key& key, const std::vector<int64_t>& sizes) {
    const auto found = plans_.find(key);
    auto program = found == plans_.end() ? nullptr : found->second->at(sizes);
    if (!program) throw ProgramError("the program has no backward for these gradients and sizes");
    auto made = std::make_shared<plan::Plan>(std::move(program));
    made->set_budget(budget_);
    return made;
}

namespace {

// One plan, or for some of several tangents the sum of the plans for each alone.
struct PlannedBackward : Backward {
    PlannedBackward(Mask mask, Reach reach, std::vector<bool> requested, size_t n_saved,
                    std::vector<std::shared_ptr<plan::Plan>> plans)
        : Backward(std::move(mask), reach, std::move(requested)), n_saved(n_saved), plans(std::move(plans)) {}

    variable_list run(variable_list&& arguments, const std::vector<bool>&) const override {
        if (plans.size() == 1) return plan::run_owned(*plans[0], std::move(arguments), {});
        variable_list total;
        for (size_t i = 0; i < plans.size(); ++i) {
            variable_list own(arguments.begin(), arguments.begin() + static_cast<std::ptrdiff_t>(n_saved));
            own.push_back(arguments[n_saved + i]);
            variable_list found = plan::run_owned(*plans[i], std::move(own), {});
            if (total.empty()) {
                total = std::move(found);
                continue;
            }
            for (size_t k = 0; k < total.size(); ++k) {
                if (!found[k].defined()) continue;
                total[k] = total[k].defined() ? at::add(total[k], found[k]) : found[k];
            }
        }
        return total;
    }

    const size_t n_saved;
    const std::vector<std::shared_ptr<plan::Plan>> plans;
};

Mask mask_of(const std::vector<size_t>& tangents, size_t n) {
    Mask mask(n);
    for (const size_t k : tangents) mask[k] = 1;
    return mask;
}

std::vector<Mask> masks_of(const std::vector<std::vector<size_t>>& lists, size_t n) {
    std::vector<Mask> masks;
    for (const auto& tangents : lists) masks.push_back(mask_of(tangents, n));
    return masks;
}

Layout layout_at(const SizedLayout& layout, const std::vector<int64_t>& slots) {
    Layout made{{}, {}, layout.dtype};
    for (const size_t slot : layout.shape) made.shape.push_back(slots.at(slot));
    for (const size_t slot : layout.stride) made.stride.push_back(slots.at(slot));
    return made;
}

SavedSource::Kind kind_of(const std::string& kind) {
    return kind == "primal"   ? SavedSource::Kind::primal
           : kind == "alias"  ? SavedSource::Kind::alias
           : kind == "output" ? SavedSource::Kind::output
                              : SavedSource::Kind::temporary;
}

}  // namespace

ProgramSpec::ProgramSpec(const Method& method, const plan::Program& forward, std::vector<int64_t> sizes,
                         const std::vector<int64_t>& slots, std::shared_ptr<BackwardPlans> plans)
    : sizes_(std::move(sizes)), backward_plans_(std::move(plans)) {
    const Gradients& g = *method.gradients;
    const size_t n = g.tangents.size();
    name = "SmeltBackward";
    n_outputs = n_results = g.n_outputs;
    n_inputs = method.inputs.size();
    gradients = g.inputs;
    n_leaves = g.leaves;
    through = g.through;
    for (const auto& [output, layout] : g.tangents) tangents.push_back({output, layout_at(layout, slots)});
    for (const SavedValue& s : g.saved) {
        SavedSource made{kind_of(s.kind), s.index, mask_of(s.readers, n), {}, {}, s.is_recomputed_from};
        if (s.layout) made.layout = layout_at(*s.layout, slots);
        made.data = s.data == "new"   ? SavedSource::Data::new_data
                    : s.data == "old" ? SavedSource::Data::old
                                      : SavedSource::Data::mixed;
        add_saved(std::move(made));
    }
    conflicts = masks_of(g.conflicts, n);
    direct = masks_of(g.direct, n);
    const std::vector<Mask> contributors = masks_of(g.contributors, n);
    for (const Gradients::Group& group : g.groups)
        add_group({group.tangents, group.whole, group.ends_at_last}, contributors);
    if (forward.n_inputs < n_inputs || forward.outputs.size() < n_results)
        throw ProgramError("a plan with other results than its program");
    auto& returned = returned_inputs.emplace();
    for (const autograd::Tangent& t : tangents)
        if (const plan::Reg r = forward.outputs[t.output]; forward.is_input(r))
            returned.push_back(static_cast<size_t>(r));
}

const Backward& ProgramSpec::compile_backward(const Mask& mask, Reach reach,
                                              const std::vector<bool>& requested) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (const Backward* made = find(mask, reach, requested)) return *made;
    std::vector<size_t> defined;
    for (size_t k = 0; k < mask.size(); ++k)
        if (mask[k]) defined.push_back(k);
    std::vector<std::shared_ptr<plan::Plan>> plans;
    if (backward_plans_->has({defined, static_cast<size_t>(reach)}))
        plans.push_back(plan_for(defined, reach));
    else
        for (const size_t k : defined) plans.push_back(plan_for({k}, reach));
    return add(std::make_unique<PlannedBackward>(mask, reach, requested, saved.size(), std::move(plans)));
}

std::shared_ptr<plan::Plan> ProgramSpec::plan_for(const std::vector<size_t>& tangents, Reach reach) {
    const BackwardPlans::Key key{tangents, static_cast<size_t>(reach)};
    if (const auto found = plans_.find(key); found != plans_.end()) return found->second;
    auto made = backward_plans_->at(key, sizes_);
    if (!fits(mask_of(tangents, this->tangents.size()), made->program->n_inputs,
              made->program->outputs.size()))
        throw ProgramError("a plan with other results than its program");
    return plans_[key] = std::move(made);
}

}  // namespace smelt::exported
