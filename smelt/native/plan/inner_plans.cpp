#include "plan/inner_plans.h"

#include <ATen/ops/add.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/clone.h>

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "plan/plan.h"

namespace smelt::plan {
namespace {

using Tensors = std::vector<at::Tensor>;

std::atomic<void (*)()> between_steps{nullptr};

// The number that a 0-d tensor holds.
at::Tensor as_number(const at::Tensor& t) {
    at::Tensor number = t.alias();
    number.unsafeGetTensorImpl()->set_wrapped_number(true);
    return number;
}

Tensors run(const RunPlans::Inner& inner, const Tensors& operands) {
    Tensors inputs;
    inputs.reserve(inner.takes.size());
    const auto& is_number = inner.plan->program->is_number;
    for (size_t i : inner.takes)
        inputs.push_back(is_number[inputs.size()] ? as_number(operands[i]) : operands[i]);
    Tensors results = run_borrowed(*inner.plan, inputs);
    for (const at::Tensor& t : results) TORCH_CHECK(t.defined(), "smelt: a subgraph returned no tensor");
    return results;
}

bool holds(const at::Tensor& condition) {
    TORCH_CHECK(condition.defined() && condition.numel() == 1 && condition.scalar_type() == at::kBool &&
                    condition.device().is_cpu(),
                "smelt: the condition of a subgraph must be one bool on the CPU");
    return *condition.const_data_ptr<bool>();
}

// Calls `between_steps` at most every 100 ms.
class Interruptions {
  public:
    void allow() {
        void (*check)() = between_steps;
        if (const auto now = Clock::now(); check && now - checked_ > std::chrono::milliseconds(100)) {
            check();
            checked_ = now;
        }
    }

  private:
    using Clock = std::chrono::steady_clock;
    Clock::time_point checked_ = Clock::now();
};

Tensors repeated(const RunPlans& r, Tensors operands) {
    const bool records = r.rule == RunPlans::Rule::recorded_loop;
    Interruptions interruptions;
    LoopStates states;
    int64_t steps = 0;
    for (; holds(run(r.plans[0], operands)[0]); ++steps) {
        if (records && steps) states.emplace_back(operands.begin(), operands.begin() + r.carried);
        Tensors next = run(r.plans[1], operands);
        for (size_t i = 0; i < r.carried; ++i) operands[i] = with_layout(r.layouts[i], std::move(next[i]));
        interruptions.allow();
    }
    operands.resize(r.carried);
    if (records) operands.push_back(loop_history(steps, std::move(states)));
    return operands;
}

Tensors backward(const RunPlans& r, const at::Tensor& history, Tensors operands) {
    const LoopStates& states = loop_states(history);
    const Tensors first(operands.begin() + r.tangents, operands.begin() + r.tangents + r.carried);
    Interruptions interruptions;
    Tensors sums;
    size_t plan = 0;
    for (int64_t step = *history.const_data_ptr<int64_t>() - 1; step >= 0; --step) {
        const Tensors& state = step ? states.at(step - 1) : first;
        std::copy(state.begin(), state.end(), operands.begin() + r.tangents);
        Tensors next = run(r.plans[plan], operands);
        plan = std::min(plan + 1, r.plans.size() - 1);
        for (size_t i = 0; i < r.tangents; ++i) operands[i] = with_layout(r.layouts[i], std::move(next[i]));
        next.erase(next.begin(), next.begin() + r.tangents);
        if (sums.empty()) {
            sums = std::move(next);
        } else {
            for (size_t i = 0; i < sums.size(); ++i) sums[i] = at::add(sums[i], next[i]);
        }
        interruptions.allow();
    }
    TORCH_CHECK(sums.size() + r.tangents == r.outs.size(), "smelt: gradients of a loop without a step");
    operands.resize(r.tangents);
    operands.insert(operands.end(), sums.begin(), sums.end());
    return operands;
}

struct LoopHistory {
    int64_t steps;
    LoopStates states;
};

struct Histories {
    std::mutex mutex;
    std::unordered_map<const void*, std::unique_ptr<LoopHistory>> by_address;
};

Histories& histories() {
    static auto* known = new Histories;  // never destroyed: tensors may outlive the module
    return *known;
}

void drop_history(void* address) {
    std::unique_ptr<LoopHistory> dropped;
    const std::lock_guard lock(histories().mutex);
    auto found = histories().by_address.extract(address);
    if (found) dropped = std::move(found.mapped());
}

}  // namespace

at::Tensor with_layout(const Layout& layout, at::Tensor t) {
    TORCH_CHECK(layout.describes(t), "smelt: a subgraph takes or returns " +
                                         (t.defined() ? described(t.scalar_type(), t.sizes()) : "no tensor") +
                                         ", but " + described(layout.dtype, layout.shape) +
                                         " was seen when the graph was captured");
    return layout.has_strides_of(t) ? t : layout.copy_of(t);
}

Tensors run_inner(const RunPlans& r, const at::Tensor& condition, Tensors operands) {
    std::vector<const void*> storages;
    for (at::Tensor& t : operands) {
        storages.push_back(t.storage().unsafeGetStorageImpl());
        t = with_layout(r.layouts[storages.size() - 1], std::move(t));
    }
    Tensors results;
    switch (r.rule) {
        case RunPlans::Rule::cond:
            results = run(r.plans[holds(condition) ? 0 : 1], operands);
            break;
        case RunPlans::Rule::loop_backward:
            results = backward(r, condition, std::move(operands));
            break;
        default:
            results = repeated(r, std::move(operands));
    }
    for (at::Tensor& t : results) {
        const void* storage = t.storage().unsafeGetStorageImpl();
        if (std::find(storages.begin(), storages.end(), storage) != storages.end()) t = t.clone();
        storages.push_back(t.storage().unsafeGetStorageImpl());
    }
    return results;
}

at::Tensor loop_history(int64_t steps, LoopStates states) {
    auto made = std::make_unique<LoopHistory>(LoopHistory{steps, std::move(states)});
    int64_t* address = &made->steps;
    {
        const std::lock_guard lock(histories().mutex);
        histories().by_address.emplace(address, std::move(made));
    }
    return at::from_blob(address, {}, drop_history, at::TensorOptions().dtype(at::kLong));
}

const LoopStates& loop_states(const at::Tensor& history) {
    const std::lock_guard lock(histories().mutex);
    const auto found = histories().by_address.find(history.const_data_ptr());
    TORCH_CHECK(found != histories().by_address.end(),
                "smelt: the gradients of a loop need what its forward saved, not a copy");
    return found->second->states;
}

void set_between_steps(void (*check)()) {
    between_steps = check;
}

}  // namespace smelt::plan
