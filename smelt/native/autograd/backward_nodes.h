// The autograd nodes of a compiled graph.
//
// A node saves values as torch's SavedVariables, and its edges are those of eager's nodes. So version checks, hooks,
// errors, gradient accumulation and freeing are those of autograd.
#pragma once
#include <string>
#include <utility>

#include "autograd/backward_group.h"

namespace smelt::autograd {

// Propagates the gradients of one `End` of a group. All inputs of an end are computed into the same outputs, so the
// engine runs the nodes behind them exactly when eager's graph would. In a group with one output this is the output's
// node.
class CompiledBackward : public Node {
  public:
    CompiledBackward(edge_list&& edges, c10::intrusive_ptr<Group> group, size_t end)
        : Node(std::move(edges)), group_(std::move(group)), end_(end) {
        group_->set_end(end_, this);
    }
    ~CompiledBackward() override { group_->drop_end(end_); }

    std::string name() const override { return group_->spec().name; }

    bool is_freed() const { return group_->is_freed(); }

    variable_list apply(variable_list&& gradients) override {
        if (!group_->group().is_single()) return group_->take(end_, getptr());
        return group_->take_alone(gradients.empty() ? at::Tensor() : std::move(gradients[0]), getptr());
    }

    void compiled_args(CompiledNodeArgs& args) const override;
    variable_list apply_with_saved(const variable_list& gradients, SwapSavedVariables& swap) override;

    // The engine calls this after `apply`; by then `apply` has released the values of this engine call.
    void release_variables() override {
        if (group_->group().is_single()) group_->release(group_->group().tangents[0]);
    }

  private:
    c10::intrusive_ptr<Group> group_;
    size_t end_;
};

// The history of one output in a group of several: its edges lead to the ends that its gradient reaches.
class OutputOf : public Node {
  public:
    OutputOf(edge_list&& ends, c10::intrusive_ptr<Group> group, size_t tangent)
        : Node(std::move(ends)), group_(std::move(group)), tangent_(tangent) {
        group_->set_output(tangent_, this);
    }
    ~OutputOf() override { group_->drop_output(tangent_); }

    std::string name() const override { return group_->spec().name; }

    variable_list apply(variable_list&& gradients) override {
        group_->arrive(tangent_, gradients.empty() ? at::Tensor() : std::move(gradients[0]));
        return variable_list(num_outputs());
    }

    void compiled_args(CompiledNodeArgs& args) const override;
    variable_list apply_with_saved(const variable_list& gradients, SwapSavedVariables& swap) override;

    void release_variables() override { group_->release(tangent_); }

  private:
    c10::intrusive_ptr<Group> group_;
    size_t tangent_;
};

}  // namespace smelt::autograd
