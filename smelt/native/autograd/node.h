// The node of autograd's graph that a compiled graph is.
//
// What the backward reads is held by the node as torch's own SavedVariables, and the node's edges are those that eager's
// nodes would have: so version checks, hooks, errors, accumulation and what is freed when are autograd's own.
#pragma once
#include <ATen/SavedTensorHooks.h>
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "autograd/spec.h"
#include "layout.h"

namespace smelt::autograd {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// Before torch 2.13, nodes are held by std::shared_ptr.
using NodePtr = decltype(Edge::function);

template <class T, class... Args>
auto make_node(Args&&... args) {
    if constexpr (std::is_same_v<NodePtr, std::shared_ptr<Node>>)
        return std::shared_ptr<T>(new T(std::forward<Args>(args)...), [](T* node) { deleteNode(node); });
    else
        return c10::make_intrusive<T>(std::forward<Args>(args)...);
}

inline uint32_t version_of(const at::Tensor& t) {
    const auto& counter = t.unsafeGetTensorImpl()->version_counter();
    return counter.enabled() ? counter.current_version() : 0;
}

struct SavedValue {
    SavedVariable variable;
    at::Tensor number;  // instead, for a Python number
    bool is_output;
    bool is_held = true;           // false: only gradients of other nodes read it
    std::optional<Layout> layout;  // where a hook of saved tensors may give another tensor
};

// A primal that the node does not keep alive, as it was.
struct Primal {
    explicit Primal(const at::Tensor& t) : impl(t.getIntrusivePtr()), version(version_of(t)) {}

    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> impl;
    uint32_t version;
};

class CompiledBackward : public Node {
  public:
    CompiledBackward(edge_list&& edges, c10::intrusive_ptr<Spec> spec, const NodeSpec& group)
        : Node(std::move(edges)), spec_(std::move(spec)), group_(group) {
        saved_.reserve(spec_->saved.size());
    }

    std::string name() const override { return spec_->name; }

    void save(const at::Tensor& t, bool is_output, bool rebased_view) {
        saved_.push_back({SavedVariable(t, is_output, rebased_view), {}, is_output});
        if (at::SavedTensorDefaultHooks::get_hooks()) saved_.back().layout = layout_of(t);
    }
    void skip() { saved_.push_back({{}, {}, false, false}); }
    void save(at::Tensor number) { saved_.push_back({{}, std::move(number), false}); }

    void remember(const at::Tensor& primal) { primals_.emplace_back(primal); }

    // The engine calls this after `apply`, which has released what that call was to release.
    void release_variables() override;

    variable_list apply(variable_list&& tangents) override;

    // Whether one of these tangents' gradients reads the saved value.
    static bool is_read(const SavedSource& source, const Mask& mask);

  private:
    void release() {
        for (SavedValue& s : saved_) s.variable.reset_data();
    }

    // The saved values, which nobody else holds if the graph is not kept. As in eager, what only the gradients of
    // other outputs read is not looked at and stays.
    variable_list unpack(const Mask& mask, bool whole);

    // Whether no hook sees, and no call of autograd.grad asks for, what flows into the outputs in `through`. Then this
    // node does the work of all nodes; what flows into those outputs from elsewhere is added by their own nodes.
    bool is_unobserved() const;

    // Whether all primals still exist and are as they were.
    bool lock_primals(variable_list& primals) const;

    // create_graph=True: the gradients of the forward run again, operator by operator, so that they have a history.
    variable_list run_double_backward(const variable_list& primals, const variable_list& tangents) const;

    void conform_tangents(const Mask& mask, variable_list& arguments) const;

    // What torch.autograd.grad(is_grads_batched=True) asks for, sample by sample.
    variable_list run_batch(const Backward& backward, const Mask& mask, const variable_list& arguments);

    variable_list run(const Backward& backward, variable_list&& arguments);

    // Gradients that depend on what requires grad get a history that raises when it is differentiated; its edges
    // lead wherever theirs would, so that no path past it is found. A tangent that is passed on keeps its own.
    void forbid_second(const variable_list& arguments, variable_list& gradients) const;

    bool is_tangent(const variable_list& arguments, const at::Tensor& t) const;

    c10::intrusive_ptr<Spec> spec_;
    const NodeSpec& group_;
    std::vector<SavedValue> saved_;
    std::vector<Primal> primals_;  // for second derivatives
    bool partly_released_ = false;
};

// The history of one of several outputs. The node itself may get undefined gradients for outputs that nobody
// differentiates; their hooks must not be called.
class OutputOf : public Node {
  public:
    OutputOf(const c10::intrusive_ptr<Spec>& spec, Edge edge)
        : Node(edge_list{std::move(edge)}), spec_(spec) {}

    std::string name() const override { return spec_->name; }
    variable_list apply(variable_list&& gradients) override { return std::move(gradients); }

  private:
    c10::intrusive_ptr<Spec> spec_;
};

}  // namespace smelt::autograd
