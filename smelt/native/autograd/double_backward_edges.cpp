#include "autograd/double_backward_edges.h"

#include <c10/core/GradMode.h>

#include <memory>

namespace smelt::autograd {

namespace {

// The thread and the first sequence number of the nodes that a node creates while it runs.
struct Started {
    uint64_t thread = 0, number = 0;

    // Leaves have the highest sequence number, and no edges.
    bool made(const Node& node) const { return node.thread_id() == thread && node.sequence_nr() >= number; }
};

struct RecordStart : torch::autograd::FunctionPreHook {
    explicit RecordStart(std::shared_ptr<Started> started) : started_(std::move(started)) {}

    variable_list operator()(const variable_list& gradients) override {
        *started_ = {at::RecordFunction::currentThreadId(), at::sequence_number::peek()};
        return gradients;
    }

    std::shared_ptr<Started> started_;
};

template <class Enters>
void walk(variable_list& gradients, const Routes& routes, const Routes& of_views, Enters enters);

// A hook on a node with redirected edges: redirects the gradients that the node computes with create_graph=True.
struct Reroute : torch::autograd::FunctionPostHook {
    Reroute(std::shared_ptr<Started> started, Routes routes)
        : started_(std::move(started)), routes_(std::move(routes)) {}

    variable_list operator()(const variable_list& gradients, const variable_list&) override {
        variable_list redirected = gradients;
        if (c10::GradMode::is_enabled())
            walk(redirected, routes_, {}, [start = *started_](const Node& node) { return start.made(node); });
        return redirected;
    }

    std::shared_ptr<Started> started_;
    Routes routes_;
};

const Edge* find(const Routes& routes, const Edge& edge) {
    for (const auto& [from, to] : routes)
        if (from == edge) return &to;
    return nullptr;
}

// A node that writes a view contains the node of an operator, which may save the written value: it creates edges of
// `of_views` without having had one.
template <class Enters>
void walk(variable_list& gradients, const Routes& routes, const Routes& of_views, Enters enters) {
    std::vector<NodePtr> pending;
    std::unordered_set<const Node*> seen;
    auto visit = [&](const NodePtr& node) {
        if (node && enters(*node) && seen.insert(node.get()).second) pending.push_back(node);
    };
    for (at::Tensor& g : gradients) {
        if (!g.defined() || !g.grad_fn()) continue;
        if (const Edge* to = find(routes, torch::autograd::impl::gradient_edge(g))) {
            g = g.detach();  // it is the result itself
            torch::autograd::impl::set_gradient_edge(g, *to);
        } else {
            visit(g.grad_fn());
        }
    }
    while (!pending.empty()) {
        const NodePtr node = std::move(pending.back());
        pending.pop_back();
        Routes taken;
        for (Edge& edge : node->next_edges()) {
            if (const Edge* to = find(routes, edge)) {
                taken.emplace_back(edge, *to);
                edge = *to;
            } else {
                visit(edge.function);
            }
        }
        if (dynamic_cast<torch::autograd::CopySlices*>(node.get()))
            taken.insert(taken.end(), of_views.begin(), of_views.end());
        if (taken.empty()) continue;
        const auto started = std::make_shared<Started>();
        node->add_pre_hook(std::make_unique<RecordStart>(started));
        node->add_post_hook(std::make_unique<Reroute>(started, std::move(taken)));
    }
}

}  // namespace

void reroute(variable_list& gradients, const Routes& routes, const Routes& of_views,
             const std::unordered_set<const Node*>& ends) {
    if (routes.empty()) return;
    walk(gradients, routes, of_views, [&](const Node& node) { return !ends.count(&node); });
    // The node that saved the view refers weakly to its history. The hook on the node owns that history, so the hook
    // would keep itself alive.
    for (const auto& [from, _] : of_views)
        for (Edge& edge : from.function->next_edges()) edge = Edge();
}

}  // namespace smelt::autograd
