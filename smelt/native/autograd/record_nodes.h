// One call of a compiled graph under autograd: what is read before its forward, and the nodes that become the history of its
// outputs.
#pragma once
#include <c10/core/GradMode.h>
#include <c10/util/FunctionRef.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "autograd/backward_group.h"

namespace smelt::autograd {

// The inputs of a call. A number is passed as the tensor that torch creates for one.
struct CallInputs {
    explicit CallInputs(size_t n) : tensors(n), is_number(n), is_alone(n) {}

    c10::SmallVector<at::Tensor, 8> tensors;
    c10::SmallVector<char, 8> is_number;
    c10::SmallVector<char, 8> is_alone;  // has no other owner
};

struct CallResult {
    at::Tensor tensor;
    bool is_input = false;
};

// The results of the forward, and the tensors that the mutation and view epilogue has created so far.
struct CallResults {
    c10::SmallVector<CallResult, 6> results;
    variable_list taken;

    const at::Tensor& output(const Spec& spec, size_t i) const {
        return spec.is_epilogue_output(i) ? taken[i - spec.n_outputs] : results[i].tensor;
    }
};

// Detects which of the inputs that may be returned as differentiable outputs the forward modified in place.
class Versions {
  public:
    Versions(const Spec& spec, const CallInputs& inputs);

    bool changed(const at::Tensor& t) const {
        for (const auto& [impl, version] : before_)
            if (impl == t.unsafeGetTensorImpl()) return version != version_of(t);
        return false;
    }

  private:
    c10::SmallVector<std::pair<const c10::TensorImpl*, uint32_t>, 2> before_;
};

// Whether the outputs of a call have a history. `requires_grad(i)`: whether input i is a tensor that requires grad.
template <class RequiresGrad>
bool is_differentiated(const Spec& spec, const RequiresGrad& requires_grad) {
    return c10::GradMode::is_enabled() &&
           std::any_of(spec.gradients.begin(), spec.gradients.end(), requires_grad);
}

// Records a call that `is_differentiated`. Created before the forward, which may modify inputs in place and so change their
// history.
class Recorder {
  public:
    // Reads the state before the forward. `inputs` must outlive the recorder.
    Recorder(c10::intrusive_ptr<Spec> spec, const CallInputs& inputs);

    // After the forward: detaches outputs that are views of the plan's own memory, and records the nodes. `take(n)` runs the
    // epilogue steps that follow the first n nodes.
    void record(CallResults& outcome, c10::function_ref<void(size_t)> take) const;

  private:
    // State before the forward that a double backward needs.
    struct StateBefore {
        variable_list copies;  // of `Spec::copied`
        std::shared_ptr<const RandomState> random_state;
    };

    // The edges to inputs whose gradients are defined.
    edge_list defined_edges(const CallResults& outcome) const;
    c10::intrusive_ptr<Group> group(const NodeSpec& made_for, const edge_list& edges,
                                    const CallResults& outcome) const;
    DoubleBackwardInputs double_backward_inputs(const CallResults& outcome) const;

    const c10::intrusive_ptr<Spec> spec_;
    const CallInputs& inputs_;
    const edge_list edges_;
    const Versions versions_;
    StateBefore before_;
};

}  // namespace smelt::autograd
