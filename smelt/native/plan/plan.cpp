#include "plan/plan.h"

#include <string>

#include "plan/profiler_events.h"
#include "plan/tensor_allocation.h"
#include "torch.h"

namespace smelt::plan {
namespace {

// Copies a misaligned input for kernels. Its dimensions may overlap; their order does not matter.
void realign(const Program& p, RegisterFile& f, size_t i, const at::Tensor& t) {
    const BelowAutograd beneath;
    int64_t last = 0;
    for (int64_t d = 0; d < t.dim(); ++d) last += (t.size(d) - 1) * t.stride(d);
    at::Tensor memory = t.as_strided({last + 1}, {1});
    at::Tensor copy = memory.clone();
    f.data[i] = copy.unsafeGetTensorImpl()->mutable_data();
    f.realigned.push_back({std::move(memory), std::move(copy), p.written[i] != 0});
}

void check_count(const Program& p, size_t count) {
    TORCH_CHECK(count == p.n_inputs,
                "Plan: " + std::to_string(p.n_inputs) + " inputs expected, got " + std::to_string(count));
}

template <class T>
at::Tensor number_as(T number, c10::ScalarType dtype) {
    at::Tensor t = at::detail::empty_cpu({}, dtype);
    *t.mutable_data_ptr<T>() = number;
    t.unsafeGetTensorImpl()->set_wrapped_number(true);
    return t;
}

std::vector<at::Tensor> all_outputs(const Program& p, RegisterFile& f) {
    std::vector<at::Tensor> outputs(p.outputs.size());
    for (size_t i = 0; i < p.outputs.size(); ++i)
        if (p.outputs[i] >= 0) outputs[i] = output(p, f, i);
    return outputs;
}

}  // namespace

size_t Plan::drop_idle() {
    size_t bytes = idle.drop();
    for (const RunPlans& r : program->run_plans)
        for (const RunPlans::Inner& inner : r.plans) bytes += inner.plan->drop_idle();
    return bytes;
}

size_t Plan::idle_bytes() {
    size_t bytes = idle.bytes();
    for (const RunPlans& r : program->run_plans)
        for (const RunPlans::Inner& inner : r.plans) bytes += inner.plan->idle_bytes();
    return bytes;
}

void Plan::set_budget(const std::shared_ptr<ArenaBudget>& budget) {
    idle.set_budget(budget, bytes_of(*program));
    for (const RunPlans& r : program->run_plans)
        for (const RunPlans::Inner& inner : r.plans) inner.plan->set_budget(budget);
}

void set_address(const Program& p, RegisterFile& f, size_t i, const at::Tensor& t) {
    if (!p.needs_data[i]) return;
    auto* impl = t.unsafeGetTensorImpl();
    f.data[i] = p.written[i] ? impl->mutable_data() : const_cast<void*>(impl->data());
    const bool aligned = reinterpret_cast<uintptr_t>(f.data[i]) % kVector == 0;
    if (!aligned && !t.device().is_cpu() && t.device().type() == p.device.type() && t.numel() != 0)
        realign(p, f, i, t);
}

at::Tensor number_tensor(double number) {
    return number_as(number, at::kDouble);
}

at::Tensor number_tensor(int64_t number) {
    return number_as(number, at::kLong);
}

std::vector<at::Tensor> run_borrowed(Plan& plan, const std::vector<at::Tensor>& inputs) {
    const Program& p = *plan.program;
    check_count(p, inputs.size());
    const GraphEvent event(p);
    BorrowedRegisters registers(p, plan.idle);
    RegisterFile& f = *registers;
    for (size_t i = 0; i < p.n_inputs; ++i) {
        set_address(p, f, i, inputs[i]);
        if (p.is_read[i]) f.tensors[i] = inputs[i];
    }
    set_constant_addresses(p, f);
    run(p, registers, p.steps, event.names());
    return all_outputs(p, f);
}

std::vector<at::Tensor> run_owned(Plan& plan, std::vector<at::Tensor>&& inputs, const Replayed& replayed) {
    const Program& p = *plan.program;
    check_count(p, inputs.size());
    const GraphEvent event(p);
    std::vector<at::Tensor> outputs(p.outputs.size());
    if (plan.graphs && replayed(inputs, outputs)) {
        for (size_t i = 0; i < outputs.size(); ++i)
            if (p.is_input(p.outputs[i])) outputs[i] = inputs[p.outputs[i]];
        return outputs;
    }
    BorrowedRegisters registers(p, plan.idle);
    RegisterFile& f = *registers;
    for (size_t i = 0; i < p.n_inputs; ++i) {
        if (!inputs[i].defined()) {  // the plan does not read it
            TORCH_CHECK(!p.is_read[i], "Plan: input " + std::to_string(i) + " must be a Tensor, got none");
            continue;
        }
        set_address(p, f, i, inputs[i]);
        if (p.is_read[i]) f.tensors[i] = std::move(inputs[i]);
    }
    inputs.clear();
    set_constant_addresses(p, f);
    run(p, registers, p.owning_steps, event.names());
    return all_outputs(p, f);
}

}  // namespace smelt::plan
