// Reads a program from the plan that Python passes (smelt/plan/executable_plan.py).
#pragma once
#include "plan/program.h"
#include "plan/symbolic_plan.h"
#include "torch_python.h"

namespace smelt::plan {

// Throws Python errors for an invalid plan.
void read_program(const py::tuple& spec, Program& program);

// The same for a plan with slots instead of numbers; it records them in `symbolic`. `derive_allocs` computes what
// depends on them. Arena offsets of allocations are indices of intervals.
void read_program(const py::tuple& spec, Program& program, SymbolicFields& symbolic);

// Computes what follows from the layouts and offsets of allocations. Throws a Python error if one does not fit the
// arena.
void derive_allocs(Program& program);

}  // namespace smelt::plan
