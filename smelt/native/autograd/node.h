// The nodes of autograd's graph that a compiled graph is.
//
// What the backward reads is held as torch's own SavedVariables, and the nodes' edges are those that eager's nodes would
// have: so version checks, hooks, errors, accumulation and what is freed when are autograd's own.
#pragma once
#include <string>
#include <utility>

#include "autograd/group.h"

namespace smelt::autograd {

// Hands on the gradients of one `End` of a group. The inputs that it leads to are computed into the same outputs, so that
// the engine runs what is behind them exactly where eager's would. In a group of one output it is that output's node.
class CompiledBackward : public Node {
  public:
    CompiledBackward(edge_list&& edges, c10::intrusive_ptr<Group> group, size_t end)
        : Node(std::move(edges)), group_(std::move(group)), end_(end) {
        group_->set_end(end_, this);
    }
    ~CompiledBackward() override { group_->drop_end(end_); }

    std::string name() const override { return group_->spec().name; }

    bool is_spent() const { return group_->is_spent(); }

    variable_list apply(variable_list&& gradients) override {
        if (!group_->group().is_single()) return group_->take(end_, getptr());
        return group_->take_alone(gradients.empty() ? at::Tensor() : std::move(gradients[0]), getptr());
    }

    // The engine calls this after `apply`, which has released what that call was to release.
    void release_variables() override {
        if (group_->group().is_single()) group_->release(group_->group().tangents[0]);
    }

  private:
    c10::intrusive_ptr<Group> group_;
    size_t end_;
};

// The history of one of several outputs of a group: its edges lead to the ends that its gradient reaches.
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

    void release_variables() override { group_->release(tangent_); }

  private:
    c10::intrusive_ptr<Group> group_;
    size_t tangent_;
};

}  // namespace smelt::autograd
