#include "plan/inner_plans.h"

#include <ATen/ops/clone.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include "plan/plan.h"

namespace smelt::plan {
namespace {

using Tensors = std::vector<at::Tensor>;

std::atomic<void (*)()> between_steps{nullptr};

Tensors run(const RunPlans::Inner& inner, const Tensors& operands) {
    Tensors inputs;
    inputs.reserve(inner.takes.size());
    for (size_t i : inner.takes) inputs.push_back(operands[i]);
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

Tensors repeated(const RunPlans& r, Tensors operands) {
    using Clock = std::chrono::steady_clock;
    auto checked = Clock::now();
    while (holds(run(r.plans[0], operands)[0])) {
        Tensors next = run(r.plans[1], operands);
        for (size_t i = 0; i < r.carried; ++i) operands[i] = with_layout(r.layouts[i], std::move(next[i]));
        void (*check)() = between_steps;
        if (const auto now = Clock::now(); check && now - checked > std::chrono::milliseconds(100)) {
            check();
            checked = now;
        }
    }
    operands.resize(r.carried);
    return operands;
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
    Tensors results = r.loops ? repeated(r, operands) : run(r.plans[holds(condition) ? 0 : 1], operands);
    for (at::Tensor& t : results) {
        const void* storage = t.storage().unsafeGetStorageImpl();
        if (std::find(storages.begin(), storages.end(), storage) != storages.end()) t = t.clone();
        storages.push_back(t.storage().unsafeGetStorageImpl());
    }
    return results;
}

void set_between_steps(void (*check)()) {
    between_steps = check;
}

}  // namespace smelt::plan
