// What a guard tree keeps from its last complete pass, so that the next one need not walk what has not changed.
//
// A node is settled if stamps (stamps.h) say that it would read the same object again; nodes below an anchor are
// settled relative to it: a node that is read in every pass (an argument, a cell), as long as it reads the same object.
// A pass over the memo compares stamps, and looks only at nodes that are not settled and at checks for which there are
// no stamps: the metadata of tensors, settings of the process. Its steps are in the order of the tree.
//
// What always holds: a memo's pass accepts only what a complete pass would accept. Where stamps or anchors disagree it
// does not know, and the complete pass decides.
#pragma once
#include "guards/accessor.h"
#include "guards/check.h"
#include "guards/checks/tensors.h"

#include <algorithm>
#include <utility>

namespace smelt::guards {

struct Node {
    int parent;
    int collect;
    AccessorPtr accessor;
    std::vector<CheckPtr> checks;
};

enum class Answer { Holds, Fails, Unknown };

class Memo {
  public:
    bool ready() const { return ready_; }
    PyObject** values() { return values_.data(); }
    size_t words() const { return stamps_.size(); }
    size_t looks() const {
        return tensors_.size() +
               std::count_if(steps_.begin(), steps_.end(), [](const Step& step) { return step.node >= 0; });
    }

    // `pass.values` must be `values()`.
    Answer run(const std::vector<Node>& nodes, Pass& pass) {
        const Stamp* stamp = stamps_.list().data();
        for (const Step& step : steps_) {
            for (const Stamp* end = stamps_.list().data() + step.stamps_end; stamp != end; stamp++)
                if (!stamp->agrees()) return Answer::Unknown;
            if (step.node < 0) continue;
            if (step.is_read) {
                const Node& node = nodes[step.node];
                PyObject* base = node.parent < 0 ? nullptr : pass.values[node.parent];
                PyObject* x = node.accessor->read(base, pass);
                if (!x) return Answer::Fails;
                if (step.anchor && x != step.anchor) return Answer::Unknown;
                pass.values[step.node] = x;
            }
            for (Check* check : step.checks)
                if (!check->holds(pass.values[step.node], pass)) return Answer::Fails;
        }
        for (const TensorNote& tensor : tensors_)
            if (!tensor.holds()) return Answer::Fails;
        hits_++;
        return Answer::Holds;
    }

    // Whether to make it anew after a complete pass: less and less often while that does not help.
    bool is_due() {
        if (wait_left_ > 0) return wait_left_--, false;
        wait_ = hits_ >= kWorthIt ? 0 : std::min(2 * wait_ + 1, kLongestWait);
        wait_left_ = wait_;
        if (hits_ >= kForgiven) stamps_.forgive(), strays_.clear();
        return true;
    }

    // After a complete pass that held and read `values`.
    void make(const std::vector<Node>& nodes, PyObject* const* values) {
        ready_ = false;
        hits_ = 0;
        stamps_.restart();
        steps_.clear();
        tensors_.clear();
        values_.assign(values, values + nodes.size());
        std::vector<PyObject*> anchors(nodes.size(), nullptr);
        Making making{nodes, values, std::vector<State>(nodes.size(), State::Unsettled), {}, anchors};
        making.depended.assign(nodes.size(), false);
        for (size_t i = 0; i < nodes.size(); i++) add(static_cast<int>(i), making);
        finish(making);
        anchors_ = std::move(making.anchors);
        ready_ = true;
    }

  private:
    static constexpr int kWorthIt = 8, kForgiven = 1000, kLongestWait = 255;

    struct Step {
        size_t stamps_end = 0;
        int node = -1;
        bool is_read = false;
        PyObject* anchor = nullptr;
        std::vector<Check*> checks{};
    };
    enum class State { Unsettled, Anchored, Settled };
    struct Making {
        const std::vector<Node>& nodes;
        PyObject* const* values;
        std::vector<State> states;
        std::vector<bool> depended;  // stamps were taken relative to this node
        std::vector<PyObject*> anchors;
    };

    void add(int i, Making& making) {
        const Node& node = making.nodes[i];
        PyObject* x = making.values[i];
        bool settled = settles(i, making);
        State& state = making.states[i];
        state = settled ? State::Settled : can_anchor(i, making) ? State::Anchored : State::Unsettled;
        if (settled && node.parent >= 0) making.depended[node.parent] = true;
        Step step{stamps_.size(), i, !settled};
        if (state == State::Anchored) step.anchor = making.anchors[i] = x;
        for (const CheckPtr& check : node.checks) {
            size_t before = stamps_.size();
            if (state != State::Unsettled && stamped(*check, x, settled, making)) {
                making.depended[i] = true;
                continue;
            }
            stamps_.shrink(before);
            step.checks.push_back(check.get());
        }
        if (settled && step.checks.empty()) return;
        if (settled && step.checks.size() == 1) {
            auto* tensor = dynamic_cast<TensorIs*>(step.checks[0]);
            if (tensor && tensor->reads.empty()) {
                tensors_.emplace_back(x, tensor->facts.get());
                return;
            }
        }
        if (settled) step.stamps_end = stamps_.size();
        steps_.push_back(std::move(step));
    }

    bool settles(int i, Making& making) {
        const Node& node = making.nodes[i];
        State base = node.parent < 0 ? State::Settled : making.states[node.parent];
        if (base == State::Unsettled) return false;
        size_t before = stamps_.size();
        PyObject* from = node.parent < 0 ? nullptr : making.values[node.parent];
        if (node.accessor->stamp(from, stamps_, base == State::Settled)) return true;
        stamps_.shrink(before);
        return false;
    }

    bool stamped(Check& check, PyObject* x, bool settled, Making& making) {
        if (const std::vector<int>* others = check.about())
            return settled && std::all_of(others->begin(), others->end(),
                                          [&](int other) { return making.states[other] == State::Settled; });
        return check.stamp(x, stamps_, settled);
    }

    // Arguments gathered by the interpreter are new objects in every call, and so may be others: found out by trying.
    bool can_anchor(int i, const Making& making) {
        PyObject* x = making.values[i];
        if (PyDict_CheckExact(x) || PyTuple_CheckExact(x)) return false;
        const std::vector<CheckPtr>& checks = making.nodes[i].checks;
        if (std::none_of(checks.begin(), checks.end(), [](const CheckPtr& c) { return c->proves_layout(); }))
            return false;
        if (!anchors_.empty() && anchors_[i] && anchors_[i] != x) strays_[i]++;
        auto stray = strays_.find(i);
        return stray == strays_.end() || stray->second < Stamps::kRestless;
    }

    // What nothing depends on need not be the same object again. Stamps after the last step get a step.
    void finish(Making& making) {
        for (Step& step : steps_)
            if (step.anchor && !making.depended[step.node]) step.anchor = making.anchors[step.node] = nullptr;
        if (steps_.empty() || steps_.back().stamps_end != stamps_.size()) steps_.push_back({stamps_.size()});
    }

    bool ready_ = false;
    int wait_ = 0, wait_left_ = 1;
    long hits_ = 0;
    std::vector<PyObject*> values_;   // by node; borrowed: looked at only after what says they are there
    std::vector<PyObject*> anchors_;  // by node, of the last time; compared only
    std::unordered_map<int, int> strays_;
    Stamps stamps_;
    std::vector<Step> steps_;
    std::vector<TensorNote> tensors_;  // of settled nodes: looked at after all steps
};

}  // namespace smelt::guards
