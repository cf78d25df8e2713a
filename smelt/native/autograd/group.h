// What the nodes of one group share: what the backward reads, and gradients on their way through it.
#pragma once
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "autograd/spec.h"
#include "autograd/streams.h"
#include "layout.h"
#include "torch_autograd.h"
#include "torch_random.h"

namespace smelt::autograd {

struct SavedValue {
    SavedVariable variable;
    at::Tensor number;  // instead, for a Python number
    bool is_output = false;
    std::optional<Layout> layout;  // where a hook of saved tensors may give another tensor
};

// A tensor that the nodes do not keep alive, as it was. They do keep a number, and one that nobody else holds (`alone`:
// the compiled frame made it).
struct Remembered {
    Remembered(const at::Tensor& t, bool alone)
        : held(alone ? t : at::Tensor()), impl(t.getIntrusivePtr()), version(version_of(t)) {}

    bool was_written() const { return version_of(at::Tensor(impl.lock())) != version; }

    at::Tensor held;
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> impl;
    uint32_t version;
    bool is_number = false;
};

// What running the forward again takes.
struct Rerun {
    std::vector<Remembered> primals;
    std::vector<Remembered> through;                  // the outputs of `Spec::through` that are there by then
    std::vector<Remembered> taken;                    // all that is, also later
    std::shared_ptr<const RandomState> random_state;  // before the forward, where that draws
};

// A group's gradients are computed once for all tangents that a call of the engine has for it, however many nodes hand
// them on. Each output's node puts its tangent here; the first node that hands gradients on has them computed.
//
// What is freed, and when "a second time" is raised, follows eager's graph: `NodeSpec::conflicts` says which tangents'
// gradients pass the same saved value there.
class Group : public c10::intrusive_ptr_target {
  public:
    Group(c10::intrusive_ptr<Spec> spec, const NodeSpec& group);

    const Spec& spec() const { return *spec_; }
    const NodeSpec& group() const { return group_; }

    // Made in the order of `group().buckets`.
    void save(const at::Tensor& t, bool is_output, bool rebased_view);
    void save(at::Tensor number);
    void remember(Rerun rerun) { rerun_ = std::move(rerun); }
    void remember_output(const at::Tensor& t) { output_ = c10::weak_intrusive_ptr(t.getIntrusivePtr()); }
    // The other groups of the same call, where this one can do the work of all.
    void set_pieces(std::vector<c10::intrusive_ptr<Group>> pieces) { pieces_ = std::move(pieces); }
    void remember_taken(const std::vector<at::Tensor>& taken) {
        for (const at::Tensor& t : taken) rerun_.taken.emplace_back(t, false);
    }

    // The nodes, which say so when they are gone.
    void set_output(size_t tangent, const Node* node) { outputs_[tangent] = node; }
    void set_end(size_t end, const Node* node) { ends_[end] = node; }
    void drop_output(size_t tangent);
    void drop_end(size_t end);

    // An output's gradient, in the engine's call that is running. Throws where it was asked for before, and freed.
    void arrive(size_t tangent, at::Tensor gradient);

    // The gradients that one end hands on.
    variable_list take(size_t end, const NodePtr& node);

    // Those of a group with one tangent.
    variable_list take_alone(at::Tensor gradient, const NodePtr& node);

    // Whether the gradient of a group with one tangent cannot be asked for again.
    bool is_spent();

    // The engine has run the output's node and does not keep the graph.
    void release(size_t tangent);

  private:
    static constexpr int kNever = -2;

    // One call of the engine.
    struct Task {
        int id;
        variable_list tangents;
        Mask ran;
        variable_list gradients;
        size_t ends_left;
    };

    Task* find(int id);
    Task& start(int id);
    void finish(int id);
    bool is_freed_for(size_t tangent) const;  // so that asking for its gradient raises
    void check(size_t tangent) const;

    // The tangents of a task that no gradient was computed from; empty if `end` needs none of them.
    Mask pending(const Task& task, size_t end) const;
    void add(Task& task, variable_list&& gradients) const;

    // `awaited`: tangents that will still come in this call of the engine.
    variable_list compute(const Mask& mask, variable_list&& tangents, const Mask& awaited,
                          const NodePtr& node);
    variable_list unpack(const Mask& mask, const Mask& awaited, const NodePtr& node);
    void free_read(const Mask& mask, const Mask& awaited);
    void free(size_t bucket);
    // Where this group does the work of all, in a call of the engine that does not keep the graph: frees what the pieces
    // would read that nothing will flow into. The engine would have them freed as well, but only when this group is done.
    void free_pieces();
    // By piece: whether something may flow into it in the engine's call that is running.
    std::vector<bool> pieces_in_use() const;
    // `n_others`: who refers to its node, but nodes of this call.
    bool is_used_elsewhere(size_t n_others) const;
    Mask awaited(const Task& task) const;

    // Whether no hook sees, and no call of autograd.grad asks for, what flows into the outputs in `through`. Then this
    // group does the work of all groups; what flows into those outputs from elsewhere is added by their own nodes.
    bool is_unobserved() const;
    // Whether anybody does so for one of them, or its node is to raise, as what it reads was freed.
    bool is_observed(size_t through) const;

    // The node that is the history of an output of this group; null where it is gone.
    const Node* history_of(size_t tangent) const;

    // Whether all primals still exist, and they and the outputs in `through` are as they were. Of these, some may be
    // gone if nobody looks at what flows into them.
    bool lock_rerun(variable_list& primals, variable_list& through) const;

    // create_graph=True: the gradients of the forward run again, operator by operator, so that they have a history.
    variable_list run_double_backward(const variable_list& primals, const variable_list& through,
                                      const variable_list& tangents) const;

    // Where those gradients were computed from `results` of that run, their history goes on through the outputs that the
    // program holds, as eager's does where a formula saves its result.
    void reroute_to_outputs(variable_list& gradients, const variable_list& results,
                            const variable_list& primals, const variable_list& through,
                            const variable_list& tangents) const;

    void conform_tangents(const Mask& mask, variable_list& arguments) const;

    // What torch.autograd.grad(is_grads_batched=True) asks for, sample by sample.
    variable_list run_batch(const Backward& backward, const Mask& mask, const variable_list& arguments);

    variable_list run(const Backward& backward, variable_list&& arguments);

    // Gradients that depend on what requires grad get a history that raises when it is differentiated; its edges
    // lead wherever theirs would, so that no path past it is found. A tangent that is passed on keeps its own.
    void forbid_second(const variable_list& arguments, variable_list& gradients) const;

    bool is_tangent(const variable_list& arguments, const at::Tensor& t) const;

    size_t n_gradients() const { return spec_->gradients.size() + spec_->through.size(); }

    c10::intrusive_ptr<Spec> spec_;
    const NodeSpec& group_;
    Streams streams_;                // of a graph over several GPUs, each one's in the forward
    std::vector<SavedValue> saved_;  // bucket by bucket
    Rerun rerun_;                    // for second derivatives
    std::vector<c10::intrusive_ptr<Group>> pieces_;
    // Of a group with one tangent; the program may drop it.
    std::optional<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> output_;
    std::vector<const Node*> ends_;
    c10::SmallVector<const Node*, 4> outputs_;  // by tangent
    c10::SmallVector<int, 4> arrived_;          // by tangent: the last call of the engine that had it
    c10::SmallVector<int, 4> released_;         // by tangent: the call of the engine that released it
    std::vector<Task> tasks_;
    std::mutex mutex_;
};

}  // namespace smelt::autograd
