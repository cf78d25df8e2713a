// A program that runs: its idle register files, and calls.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "plan/cuda_graphs.h"
#include "plan/executor.h"
#include "plan/program.h"
#include "plan/registers.h"

namespace smelt::plan {

// Thread-safe.
struct Plan {
    explicit Plan(std::unique_ptr<const Program> program) : program(std::move(program)) {}

    const std::unique_ptr<const Program> program;
    IdleRegisterFiles idle;
    std::unique_ptr<CudaGraphs> graphs;  // null: no CUDA graphs

    // Memory that calls do not use, with that of inner plans.
    size_t drop_idle();  // frees it; returns the bytes of its arenas
    size_t idle_bytes();
    // Call it once, before the plan runs.
    void set_budget(const std::shared_ptr<ArenaBudget>& budget);
};

// ---- the parts of a call

// Sets the address of input i for kernels; on a GPU a misaligned input is copied.
void set_address(const Program& p, RegisterFile& f, size_t i, const at::Tensor& t);

inline void set_constant_addresses(const Program& p, RegisterFile& f) {
    for (size_t i = p.n_inputs; i < p.n_inputs + p.constants.size(); ++i)
        if (p.needs_data[i]) f.data[i] = f.tensors[i].unsafeGetTensorImpl()->mutable_data();
}

// A number as the 0-d tensor that torch creates for one: it does not take part in type promotion.
at::Tensor number_tensor(double number);
at::Tensor number_tensor(int64_t number);

// Binds an input that is a number.
inline void set_number(RegisterFile& f, size_t i, at::Tensor number) {
    f.tensors[i] = std::move(number);
    f.data[i] = f.tensors[i].unsafeGetTensorImpl()->mutable_data();
}

// The i-th output. Call it once per output, in order: the last use moves the tensor out of the register.
inline at::Tensor output(const Program& p, RegisterFile& f, size_t i) {
    at::Tensor& t = f.tensors[p.outputs[i]];
    return p.is_last[i] ? std::move(t) : t;
}

// ---- whole calls

// Runs on tensors that the caller keeps alive; numbers are passed as `number_tensor`. A dropped output is undefined. Throws
// what operators throw.
std::vector<at::Tensor> run_borrowed(Plan& plan, const std::vector<at::Tensor>& inputs);

// Runs on tensors that the plan owns alone, so it frees them after their last use. `replayed(inputs, outputs)` replays a
// CUDA graph, or returns false.
using Replayed = std::function<bool(const std::vector<at::Tensor>& inputs, std::vector<at::Tensor>& outputs)>;
std::vector<at::Tensor> run_owned(Plan& plan, std::vector<at::Tensor>&& inputs, const Replayed& replayed);

}  // namespace smelt::plan
