// A plan with symbolic sizes, valid for all sizes that satisfy its conditions.
//
// Its program is read once, with slots instead of numbers that depend on sizes. A program for concrete sizes is a copy: an
// integer program computes the slots, temporaries get offsets in the arena, and the slots' values replace the
// symbolic numbers. Inner plans are copied in the same way, with the same slots.
#pragma once
#include <memory>
#include <vector>

#include "plan/program_reader.h"
#include "plan/symbolic_plan.h"
#include "shapes/size_program.h"

namespace smelt::plan {

// Whether the value of a slot is at least 0.
struct Condition {
    size_t slot;
    bool holds;
};

struct Template : SizedProgram {
    size_t n_sizes = 0;                             // the first slots
    std::vector<shapes::Instruction> instructions;  // of the other slots, in order
    std::vector<Condition> conditions;
    int64_t alignment = 1;
};

// Reads a template: the program as `read_program`, and its sizes (smelt/plan/executable_plan.py). Throws FormatError.
std::unique_ptr<const Template> read_template(const values::Value& spec, const values::Value& sizes,
                                              Surroundings surroundings);

// The program for as many sizes as the template has; null if they do not satisfy the conditions. Throws
// std::overflow_error for sizes of more than 64 bits.
std::unique_ptr<const Program> program_at(const Template& t, std::vector<int64_t> sizes);

}  // namespace smelt::plan
