// Reads a program from a value (smelt/plan/executable_plan.py writes it), which may come from a file.
#pragma once
#include <vector>

#include "plan/program.h"
#include "plan/symbolic_plan.h"
#include "values/value.h"

namespace smelt::devices {
class Kernel;
}

namespace smelt::plan {

// The code of a launch: a function in this process, or a GPU's kernel.
struct Code {
    void* function = nullptr;
    devices::Kernel* kernel = nullptr;
};

// What a program refers to that has no form in bytes. `kernels`: by their positions in launches.
struct Surroundings {
    std::vector<at::Tensor> constants;
    std::vector<Code> kernels;
};

// Throws FormatError for an invalid plan: of steps that read registers before these are defined, of allocations that do not
// fit the arena, of unknown operators, of arguments that an operator does not take.
void read_program(const values::Value& spec, Surroundings surroundings, Program& program);

// The same for a plan with slots instead of numbers; it records them in `symbolic`. `derive_allocs` computes what
// depends on them. Arena offsets of allocations are indices of intervals.
void read_program(const values::Value& spec, Surroundings surroundings, Program& program,
                  SymbolicFields& symbolic);

// The intervals of a plan with slots (smelt/plan/executable_plan.py).
std::vector<SymbolicInterval> read_intervals(const values::Value& value);

// Computes what follows from the layouts and offsets of allocations. Throws FormatError if one does not fit the arena.
void derive_allocs(Program& program);

}  // namespace smelt::plan
