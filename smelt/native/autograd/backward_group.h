// State shared by the autograd nodes of one group: the saved values, and the gradients that the engine has delivered.
#pragma once
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "autograd/backward_streams.h"
#include "autograd/node_spec.h"
#include "tensor_layout.h"
#include "torch_autograd.h"
#include "torch_generator.h"

namespace smelt::autograd {

// A weak reference to a tensor, with its version counter and its memory, which an assignment to its `data` replaces. The
// reference is strong for a number, and for a tensor with no other owner (`alone`: the compiled frame created it). The
// reference to the memory keeps its address from being used again.
struct WeakTensor {
    WeakTensor(const at::Tensor& t, bool alone)
        : held(alone ? t : at::Tensor()),
          impl(t.getIntrusivePtr()),
          storage(t.unsafeGetTensorImpl()->unsafe_storage().getWeakStorageImpl()),
          offset(TensorImplFields::storage_offset(t.unsafeGetTensorImpl())),
          version(version_of(t)) {}

    bool was_written() const { return version_of(at::Tensor(impl.lock())) != version || has_new_data(); }

    // Whether the program has assigned to its `data`.
    bool has_new_data() const {
        const at::Tensor t(impl.lock());
        const c10::TensorImpl* now = t.unsafeGetTensorImpl();
        return TensorImplFields::storage_offset(now) != offset ||
               now->unsafe_storage().unsafeGetStorageImpl() != storage._unsafe_get_target();
    }

    at::Tensor held;
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> impl;
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    int64_t offset;
    uint32_t version;
    bool is_number = false;
};

// A tensor that saved-tensor hooks got, and what shows that it was modified since.
struct Original {
    explicit Original(const at::Tensor& t)
        : tensor(t, false), counter(t.unsafeGetTensorImpl()->version_counter()) {}

    // Whether `value`, the result of an unpack hook, is in its memory and no longer what it was.
    bool is_modified_in(const at::Tensor& value) const;

    WeakTensor tensor;
    c10::VariableVersion counter;  // outlives the tensor: an alias of it may be written
};

struct SavedValue {
    SavedVariable variable;
    at::Tensor number;  // set instead of `variable` for a Python number
    bool is_output = false;
    std::optional<Layout> layout;      // set where saved-tensor hooks may replace the tensor
    std::optional<Original> original;  // set where hooks got an input that values are recomputed from
    bool is_of_primal = false;         // hooks got the primal, which is another saved value
    std::optional<WeakTensor>
        result;  // of a result that this node is not the history of: as the program holds it

    // Raises if `value`, what an unpack hook gave for it, was modified since.
    void check(const at::Tensor& value) const;
};

// The inputs of a double backward, which runs the forward again.
struct DoubleBackwardInputs {
    std::vector<WeakTensor> primals;
    std::vector<WeakTensor> through;  // the outputs of `Spec::through` that exist when the group is created
    std::vector<WeakTensor> taken;    // all tensors of the epilogue, later ones included
    std::shared_ptr<const RandomState> random_state;  // before the forward, if it draws random numbers
};

// The backward of a group runs once for all tangents that arrive in one engine call, however many nodes propagate its
// gradients. The node of each output deposits its tangent here; the first node that propagates gradients runs the
// backward.
//
// When saved values are freed, and when a second backward raises, follows eager's graph: `NodeSpec::conflicts` says
// which tangents' gradients pass through the same saved value in eager.
class Group : public c10::intrusive_ptr_target {
  public:
    Group(c10::intrusive_ptr<Spec> spec, const NodeSpec& group);

    const Spec& spec() const { return *spec_; }
    const NodeSpec& group() const { return group_; }

    // Call these in the order of `group().buckets`.
    void save(const at::Tensor& t, bool is_output, bool rebased_view);
    void save(at::Tensor number);
    // For an alias of the primal `t`: hooks get the primal, once.
    void save_of_primal() {
        saved_.emplace_back();
        saved_.back().is_of_primal = true;
    }
    // The last saved value may be read in the place of one that eager's node computed before `t` was modified.
    void remember_original(const at::Tensor& t) { saved_.back().original.emplace(t); }
    // The last saved value is the result `t`, which eager's nodes save as their input: an assignment to its `data` changes
    // what they read. The node that is the history of `t` must not do this: it would refer to itself.
    void remember_result(const at::Tensor& t) { saved_.back().result.emplace(t, true); }
    void remember(DoubleBackwardInputs inputs_of_double_backward) {
        double_backward_inputs_ = std::move(inputs_of_double_backward);
    }
    void remember_output(const at::Tensor& t) { output_ = c10::weak_intrusive_ptr(t.getIntrusivePtr()); }
    // The groups of one output before this one, if this group can compute their backward, too.
    void set_segments(std::vector<c10::intrusive_ptr<Group>> segments) { segments_ = std::move(segments); }
    void remember_epilogue(const std::vector<at::Tensor>& taken) {
        for (const at::Tensor& t : taken) double_backward_inputs_.taken.emplace_back(t, false);
    }

    // Nodes register here, and unregister in their destructors.
    void set_output(size_t tangent, const Node* node) { outputs_[tangent] = node; }
    void set_end(size_t end, const Node* node) { ends_[end] = node; }
    void drop_output(size_t tangent);
    void drop_end(size_t end);

    // Records the gradient of an output in the current engine call. Throws if that gradient was computed before and
    // its saved values were freed.
    void arrive(size_t tangent, at::Tensor gradient);

    // The gradients that the node of one end propagates.
    variable_list take(size_t end, const NodePtr& node);

    // The same for a group with one tangent.
    variable_list take_alone(at::Tensor gradient, const NodePtr& node);

    // Whether the saved values of a group with one tangent are freed, so that a second backward raises.
    bool is_freed();

    // The engine has run the output's node and does not retain the graph.
    void release(size_t tangent);

    // Compiled autograd, with the GIL held (`compiled_autograd.cpp`). `collect`, `collect_saved`: what identifies a node
    // (the index of its tangent or end), and the saved values. The rest records the call of one operator for all ends.
    void collect(CompiledNodeArgs& args, size_t node);
    void collect_saved(CompiledNodeArgs& args) const;
    void trace_arrival(size_t tangent, const at::Tensor& gradient);
    variable_list trace(size_t end, SwapSavedVariables& swap);

    // All gradients, for saved values of another call: `read` has those that the tangents in `mask` read.
    variable_list compute_from(const Mask& mask, variable_list&& read, variable_list&& tangents) const;

  private:
    static constexpr int kNever = -2;

    // State of one engine call.
    struct Task {
        int id;
        variable_list tangents;
        Mask ran;
        variable_list gradients;
        size_t ends_left;
    };

    // What compiled autograd has recorded of this group: stand-ins for tensors, by tangent and by gradient.
    struct Traced {
        variable_list tangents, gradients;
        Mask mask;  // the tangents that the gradients were recorded for
    };

    void trace_operator(const Mask& mask, SwapSavedVariables& swap);

    Task* find(int id);
    Task& start(int id);
    void finish(int id);
    bool is_freed_for(size_t tangent) const;  // then a second backward raises
    void check(size_t tangent) const;

    // The tangents of a task that no gradient was computed from yet; empty if `end` needs none of them.
    Mask pending(const Task& task, size_t end) const;
    void add(Task& task, variable_list&& gradients) const;

    // `awaited`: tangents that will still arrive in this engine call.
    variable_list compute(const Mask& mask, variable_list&& tangents, const Mask& awaited,
                          const NodePtr& node);
    // The saved values that the tangents in `mask` read. Raises if one was modified in place or freed, unless only
    // gradients that the engine does not request are computed from it: eager would not run the node that saved it.
    variable_list unpack(const Mask& mask, const Mask& awaited, const NodePtr& node);
    static at::Tensor unpack(const SavedValue& s, const SavedSource& source, const NodePtr& node);
    // Per gradient: whether the current engine call requests it of this group.
    std::vector<bool> requested() const;
    // Those gradients, if a backward of nothing else is to compute them; empty: the backward computes all.
    std::vector<bool> requested_part(const Mask& mask, Reach reach) const;
    // Eager does not compute the others, which may be NaN.
    void drop_unrequested(variable_list& gradients) const;
    void free_read(const Mask& mask, const Mask& awaited);
    void free(size_t bucket);
    // Frees the saved values of segments that no gradient will reach, if this group computes their backward and the
    // engine does not retain the graph. The engine would free them too, but only after this group.
    void free_segments(Reach reach);
    // Per segment: whether a gradient may reach it in the current engine call, if this group computes up to `reach`.
    std::vector<bool> segments_in_use(Reach reach) const;
    // `n_others`: the number of references to its node that are not edges of this call's nodes.
    bool is_used_elsewhere(size_t n_others) const;
    Mask awaited(const Task& task) const;

    // How far this group computes. It ends at outputs in `through` whose gradients a hook or an autograd.grad call
    // observes. Outputs' own nodes add gradients that arrive from elsewhere: where the last one does, this group ends
    // there, so that what precedes it runs once.
    Reach reach() const;
    bool ends_at_last() const;
    // Whether a hook or autograd.grad observes one of them, or its node will raise because its saved values were
    // freed.
    bool is_observed(size_t through) const;

    // The index of the output of a group with one tangent.
    size_t only_output() const { return spec_->tangents[group_.tangents[0]].output; }

    // The node that is the history of an output of this group; null if it was destroyed.
    const Node* history_of(size_t tangent) const;

    // Returns whether all primals still exist, and neither they nor the outputs in `through` were modified. An output
    // may be gone if its gradient is not observed.
    bool lock_double_backward_inputs(variable_list& primals, variable_list& through) const;

    // For create_graph=True: runs the forward again in eager mode and differentiates it, so that the gradients have a
    // history.
    variable_list run_double_backward(const variable_list& primals, const variable_list& through,
                                      const variable_list& tangents) const;

    // Redirects the history of those gradients from `results` of the recomputed forward to the outputs that the
    // program holds, as in eager where a formula saves its result.
    void reroute_to_outputs(variable_list& gradients, const variable_list& results,
                            const variable_list& primals, const variable_list& through,
                            const variable_list& tangents) const;

    void conform_tangents(const Mask& mask, variable_list& arguments) const;

    // torch.autograd.grad(is_grads_batched=True), one sample after the other.
    variable_list run_batch(const Backward& backward, const Mask& mask, const variable_list& arguments);

    variable_list run(const Backward& backward, variable_list&& arguments);

    // Gives gradients that depend on differentiable tensors a history that raises when it is differentiated. Its
    // edges lead where theirs would, so that the engine finds no path around it. A tangent that is passed through
    // keeps its own history.
    void forbid_second(const variable_list& arguments, variable_list& gradients) const;

    bool is_tangent(const variable_list& arguments, const at::Tensor& t) const;

    size_t n_gradients() const { return spec_->n_gradients(); }

    c10::intrusive_ptr<Spec> spec_;
    const NodeSpec& group_;
    Streams streams_;                // of each GPU in the forward, for a graph over several GPUs
    std::vector<SavedValue> saved_;  // in the order of the buckets
    DoubleBackwardInputs double_backward_inputs_;  // for second derivatives
    std::vector<c10::intrusive_ptr<Group>> segments_;
    // The output of a group with one tangent; the program may drop it.
    std::optional<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> output_;
    std::vector<const Node*> ends_;
    c10::SmallVector<const Node*, 4> outputs_;  // by tangent
    c10::SmallVector<int, 4> arrived_;          // by tangent: the last engine call that delivered it
    c10::SmallVector<int, 4> released_;         // by tangent: the engine call that released it
    std::vector<Task> tasks_;
    Traced traced_;
    std::mutex mutex_;
};

}  // namespace smelt::autograd
