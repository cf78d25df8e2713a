// Higher-order operators: the plans inside a plan.
#pragma once
#include <memory>
#include <vector>

#include "plan/program.h"

namespace smelt::plan {

// The results of the plans that the rule runs, which share memory neither with each other nor with operands. `condition`: of a
// `cond`, or the history of a loop; else undefined. Throws what operators throw.
std::vector<at::Tensor> run_inner(const RunPlans& r, const at::Tensor& condition,
                                  std::vector<at::Tensor> operands);

// `t`, or a copy of it with the strides of a layout. Throws if it has another shape or dtype.
at::Tensor with_layout(const Layout& layout, at::Tensor t);

// The values with which each step of a loop but the first began, for the loop's backward.
using LoopStates = std::vector<std::vector<at::Tensor>>;

// A tensor of one int64, the number of steps, whose memory owns the values. A copy of it does not.
at::Tensor loop_history(int64_t steps, LoopStates states);

// The values that a history owns. Throws for another tensor.
const LoopStates& loop_states(const at::Tensor& history);

// Sets what a loop calls between its steps, at most every 100 ms. It may throw, so that the user can interrupt the loop.
void set_between_steps(void (*check)());

}  // namespace smelt::plan
