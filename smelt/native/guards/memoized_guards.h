// Memoized guards: the result of a tree's last complete pass, so that the next pass need not walk what has not
// changed.
//
// A node is settled if stamps (memory_stamps.h) prove that it would read the same object again. An anchor is a node
// that each pass reads (an argument, a cell); nodes below it are settled as long as it reads the same object. A
// memoized pass compares stamps, reads the nodes that are not settled, and runs the checks without stamps: metadata
// of tensors, settings of the process. Its steps are in the order of the tree.
//
// Invariant: a memoized pass accepts only what a complete pass would accept. If stamps or anchors differ, it returns
// Unknown and the complete pass decides.
#pragma once
#include "guards/accessors.h"
#include "guards/guard_checks.h"
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

class MemoizedPass {
  public:
    bool ready() const { return ready_; }
    PyObject** values() { return values_.data(); }
    size_t words() const { return stamps_.size(); }
    size_t objects_read() const {
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
        for (const TensorMemo& tensor : tensors_)
            if (!tensor.holds()) return Answer::Fails;
        hits_++;
        return Answer::Holds;
    }

    // Whether to record again after a complete pass: less and less often while that does not help.
    bool should_record() {
        if (wait_left_ > 0) return wait_left_--, false;
        wait_ = hits_ >= kWorthIt ? 0 : std::min(2 * wait_ + 1, kLongestWait);
        wait_left_ = wait_;
        if (hits_ >= kResetChanges) stamps_.reset_changes(), moved_anchors_.clear();
        return true;
    }

    // Records a complete pass that held and read `values`.
    void record(const std::vector<Node>& nodes, PyObject* const* values) {
        ready_ = false;
        hits_ = 0;
        stamps_.restart();
        steps_.clear();
        tensors_.clear();
        values_.assign(values, values + nodes.size());
        std::vector<PyObject*> anchors(nodes.size(), nullptr);
        Recording recording{nodes, values, std::vector<State>(nodes.size(), State::Unsettled), {}, anchors};
        recording.depended.assign(nodes.size(), false);
        for (size_t i = 0; i < nodes.size(); i++) add(static_cast<int>(i), recording);
        finish(recording);
        anchors_ = std::move(recording.anchors);
        ready_ = true;
    }

  private:
    static constexpr int kWorthIt = 8, kResetChanges = 1000, kLongestWait = 255;

    struct Step {
        size_t stamps_end = 0;
        int node = -1;
        bool is_read = false;
        PyObject* anchor = nullptr;
        std::vector<Check*> checks{};
    };
    enum class State { Unsettled, Anchored, Settled };
    struct Recording {
        const std::vector<Node>& nodes;
        PyObject* const* values;
        std::vector<State> states;
        std::vector<bool> depended;  // stamps were taken relative to this node
        std::vector<PyObject*> anchors;
    };

    void add(int i, Recording& recording) {
        const Node& node = recording.nodes[i];
        PyObject* x = recording.values[i];
        bool settled = settles(i, recording);
        State& state = recording.states[i];
        state = settled ? State::Settled : can_anchor(i, recording) ? State::Anchored : State::Unsettled;
        if (settled && node.parent >= 0) recording.depended[node.parent] = true;
        Step step{stamps_.size(), i, !settled};
        if (state == State::Anchored) step.anchor = recording.anchors[i] = x;
        for (const CheckPtr& check : node.checks) {
            size_t before = stamps_.size();
            if (state != State::Unsettled && stamped(*check, x, settled, recording)) {
                recording.depended[i] = true;
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

    bool settles(int i, Recording& recording) {
        const Node& node = recording.nodes[i];
        State base = node.parent < 0 ? State::Settled : recording.states[node.parent];
        if (base == State::Unsettled) return false;
        size_t before = stamps_.size();
        PyObject* from = node.parent < 0 ? nullptr : recording.values[node.parent];
        if (node.accessor->stamp(from, stamps_, base == State::Settled)) return true;
        stamps_.shrink(before);
        return false;
    }

    bool stamped(Check& check, PyObject* x, bool settled, Recording& recording) {
        if (const std::vector<int>* others = check.about())
            return settled && std::all_of(others->begin(), others->end(), [&](int other) {
                       return recording.states[other] == State::Settled;
                   });
        return check.stamp(x, stamps_, settled);
    }

    // The interpreter creates new tuples and dicts of arguments for every call. Other objects may also change with
    // every call, which is found out by trying.
    bool can_anchor(int i, const Recording& recording) {
        PyObject* x = recording.values[i];
        if (PyDict_CheckExact(x) || PyTuple_CheckExact(x)) return false;
        const std::vector<CheckPtr>& checks = recording.nodes[i].checks;
        if (std::none_of(checks.begin(), checks.end(), [](const CheckPtr& c) { return c->proves_layout(); }))
            return false;
        if (!anchors_.empty() && anchors_[i] && anchors_[i] != x) moved_anchors_[i]++;
        auto stray = moved_anchors_.find(i);
        return stray == moved_anchors_.end() || stray->second < Stamps::kVolatile;
    }

    // An anchor that no stamps depend on may change. Stamps after the last step get a step of their own.
    void finish(Recording& recording) {
        for (Step& step : steps_)
            if (step.anchor && !recording.depended[step.node])
                step.anchor = recording.anchors[step.node] = nullptr;
        if (steps_.empty() || steps_.back().stamps_end != stamps_.size()) steps_.push_back({stamps_.size()});
    }

    bool ready_ = false;
    int wait_ = 0, wait_left_ = 1;
    long hits_ = 0;
    std::vector<PyObject*>
        values_;  // by node; borrowed: used only after the stamps that prove that they are alive
    std::vector<PyObject*> anchors_;  // by node, of the last recording; compared only
    std::unordered_map<int, int> moved_anchors_;
    Stamps stamps_;
    std::vector<Step> steps_;
    std::vector<TensorMemo> tensors_;  // of settled nodes: checked after all steps
};

}  // namespace smelt::guards
