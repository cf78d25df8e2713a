// torch's autograd: metadata of a tensor, nodes, edges, saved values, and the current engine call.
//
// Used directly: `Node` and the nodes `CopyBackwards`, `CopySlices`, `Error`; `set_history`, `isDifferentiableType`;
// of `torch::autograd::impl` `gradient_edge`, `set_gradient_edge`, `grad_fn_unsafe`, `rebase_history` (which since
// 2.14 returns the node), `bump_version`; `FunctionPreHook`, `FunctionPostHook`; the `Batched` tensors of
// `is_grads_batched`.
#pragma once
#include "torch.h"

#include <ATen/LegacyBatchedTensorImpl.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace smelt {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using torch::dynamo::autograd::CompiledNodeArgs;
using torch::dynamo::autograd::SwapSavedVariables;

// ------------------------------------------------------------------------------------------------------ metadata
//
// Guards read it for each tensor in each call: two of these functions must be inlined.

inline const torch::autograd::AutogradMeta* autograd_meta(const at::TensorImpl* t) {
    return static_cast<const torch::autograd::AutogradMeta*>(t->autograd_meta());
}

// Whether it has a tangent of forward-mode differentiation.
[[gnu::always_inline]] inline bool is_dual(const at::TensorImpl* t) {
    const auto* meta = autograd_meta(t);
    return meta && meta->fw_grad_ && !meta->fw_grad_->empty();
}

// As `requires_grad()`, which is a virtual call. Only the history of a view may be out of date.
[[gnu::always_inline]] inline bool requires_grad(const at::TensorImpl* t) {
    const auto* meta = autograd_meta(t);
    if (!meta) return false;
    return meta->requires_grad_ || meta->grad_fn_ || (meta->is_view_ && meta->requires_grad());
}

// ------------------------------------------------------------------------------------------------------ nodes

// Before torch 2.13 std::shared_ptr owns nodes.
using NodePtr = decltype(Edge::function);

template <class T, class... Args>
auto make_node(Args&&... args) {
    if constexpr (std::is_same_v<NodePtr, std::shared_ptr<Node>>)
        return std::shared_ptr<T>(new T(std::forward<Args>(args)...), [](T* node) { deleteNode(node); });
    else
        return c10::make_intrusive<T>(std::forward<Args>(args)...);
}

// Whether hooks observe the inputs or outputs of a node.
inline bool has_hooks(const Node& node) {
    auto& n = const_cast<Node&>(node);
    return !n.tensor_pre_hooks().empty() || !n.retains_grad_hooks().empty() || !n.pre_hooks().empty() ||
           !n.post_hooks().empty();
}

// ------------------------------------------------------------------------------------------------------ the engine

// The identifier of the current engine call on this thread; -1: none.
inline int current_task() {
    return torch::autograd::get_current_graph_task_id();
}

// Whether that call runs the node, has run it, or will.
inline bool in_current_task(const Node* node) {
    if (!node || current_task() < 0) return false;
    auto* key = const_cast<Node*>(node);
    if (!torch::autograd::get_current_graph_task_nodes_in_graph()->count(key)) return false;
    const auto* exec_info = torch::autograd::get_current_graph_task_exec_info();
    if (exec_info->empty()) return true;
    const auto found = exec_info->find(key);
    return found != exec_info->end() && found->second.should_execute();
}

// Whether that call returns the gradient of the node to its caller.
inline bool is_captured(const Node& node) {
    if (current_task() < 0) return false;
    const auto* exec_info = torch::autograd::get_current_graph_task_exec_info();
    const auto found = exec_info->find(const_cast<Node*>(&node));
    return found != exec_info->end() && found->second.captures_;
}

// Whether that call retains the graph for another differentiation.
inline bool keeps_graph() {
    return torch::autograd::get_current_graph_task_keep_graph();
}

}  // namespace smelt
