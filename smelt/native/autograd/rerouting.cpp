#include "autograd/rerouting.h"

#include <c10/core/GradMode.h>

#include <memory>

namespace smelt::autograd {

namespace {

// While a node runs: the thread, and the number from which on nodes of autograd that were made on it are its own.
struct Started {
    uint64_t thread = 0, number = 0;

    // Leaves have the highest number, and no edges.
    bool made(const Node& node) const { return node.thread_id() == thread && node.sequence_nr() >= number; }
};

struct NoteStart : torch::autograd::FunctionPreHook {
    explicit NoteStart(std::shared_ptr<Started> started) : started_(std::move(started)) {}

    variable_list operator()(const variable_list& gradients) override {
        *started_ = {at::RecordFunction::currentThreadId(), at::sequence_number::peek()};
        return gradients;
    }

    std::shared_ptr<Started> started_;
};

template <class Enters>
void walk(variable_list& gradients, const Routes& routes, const Routes& of_views, Enters enters);

// On a node that was led elsewhere: what it gives with create_graph=True is led there, too.
struct Reroute : torch::autograd::FunctionPostHook {
    Reroute(std::shared_ptr<Started> started, Routes routes)
        : started_(std::move(started)), routes_(std::move(routes)) {}

    variable_list operator()(const variable_list& given, const variable_list&) override {
        variable_list led = given;
        if (c10::GradMode::is_enabled())
            walk(led, routes_, {}, [start = *started_](const Node& node) { return start.made(node); });
        return led;
    }

    std::shared_ptr<Started> started_;
    Routes routes_;
};

const Edge* find(const Routes& routes, const Edge& edge) {
    for (const auto& [from, to] : routes)
        if (from == edge) return &to;
    return nullptr;
}

// A node that writes a view has an operator's in it, which may save what it wrote: it makes edges of `of_views` without
// having had one.
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
        node->add_pre_hook(std::make_unique<NoteStart>(started));
        node->add_post_hook(std::make_unique<Reroute>(started, std::move(taken)));
    }
}

}  // namespace

void reroute(variable_list& gradients, const Routes& routes, const Routes& of_views,
             const std::unordered_set<const Node*>& ends) {
    if (routes.empty()) return;
    walk(gradients, routes, of_views, [&](const Node& node) { return !ends.count(&node); });
    // What saved the view knows its history weakly: the hook on it, which keeps that, would keep itself.
    for (const auto& [from, _] : of_views)
        for (Edge& edge : from.function->next_edges()) edge = Edge();
}

}  // namespace smelt::autograd
