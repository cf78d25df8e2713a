// Higher-order operators: the plans inside a plan.
#pragma once
#include <vector>

#include "plan/program.h"

namespace smelt::plan {

// The results of the plans that the rule runs, which share memory neither with each other nor with operands. `condition`:
// undefined for a loop. Throws what operators throw.
std::vector<at::Tensor> run_inner(const RunPlans& r, const at::Tensor& condition,
                                  std::vector<at::Tensor> operands);

// `t`, or a copy of it with the strides of a layout. Throws if it has another shape or dtype.
at::Tensor with_layout(const Layout& layout, at::Tensor t);

// Sets what a loop calls between its steps, at most every 100 ms. It may throw, so that the user can interrupt the loop.
void set_between_steps(void (*check)());

}  // namespace smelt::plan
