// A plan as Python gives it (smelt/plan/executable_plan.py) -> a program.
#pragma once
#include "plan/program.h"
#include "plan/sized.h"
#include "torch_python.h"

namespace smelt::plan {

// Throws Python errors for what is no plan.
void read_program(const py::tuple& spec, Program& program);

// The same of a plan with slots in places of numbers, which are noted in `sized`; what depends on them is settled by
// `settle_allocs`. The places of allocations in the arena are numbers of intervals.
void read_program(const py::tuple& spec, Program& program, Sized& sized);

// What follows from the layouts and places of allocations. Throws a Python error where one does not fit the arena.
void settle_allocs(Program& program);

}  // namespace smelt::plan
