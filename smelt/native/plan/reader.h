// A plan as Python gives it (smelt/plan/executable.py) -> a program.
#pragma once
#include "plan/program.h"
#include "torch_python.h"

namespace smelt::plan {

// Throws Python errors for what is no plan.
void read_program(const py::tuple& spec, Program& program);

}  // namespace smelt::plan
