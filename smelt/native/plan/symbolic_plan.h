// Symbolic plans: the numbers of a program that depend on sizes, and their substitution.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "plan/program.h"

namespace smelt::plan {

// Identifies a number of a step; `position` is the index in a vector.
enum class Field : uint8_t {
    alloc_shape,
    alloc_stride,
    view_shape,
    view_stride,
    view_offset,
    launch_extent,
    launch_grain,
    launch_size,
    parallel_end,
    parallel_grain,
    expected_shape,
    expected_stride,
    operand_shape,
    operand_stride,
    result_shape,
    result_stride
};

// A number with the value of slot `slot`. `index`: into the vector of the step's kind; `out`: index of an ATen call's
// result, or of an operand or result of inner plans.
struct SymbolicNumber {
    Field field;
    size_t index, out, position, slot;
};

// An argument of an ATen call that is a symbolic number, or a list with some.
struct SymbolicArgument {
    size_t index, argument;
    bool is_list;
    std::vector<std::pair<size_t, size_t>> slots;  // position in the list, slot
};

// The symbolic numbers of a program.
struct SymbolicFields {
    std::vector<SymbolicNumber> numbers;
    std::vector<SymbolicArgument> arguments;
};

struct SymbolicInterval {
    size_t nbytes;  // a slot
    int64_t begin, end;
};

// A program with slots in place of numbers that depend on sizes, and the lifetimes of its temporaries: an allocation in the
// arena has the index of an interval in place of its offset.
struct SizedProgram {
    Program program;
    SymbolicFields symbolic;
    std::vector<SymbolicInterval> intervals;
};

// Substitutes the values of the slots into `program`, a copy of the program that `symbolic` describes. Arena offsets
// are unchanged.
void substitute_numbers(const SymbolicFields& symbolic, const std::vector<int64_t>& slots, Program& program);

}  // namespace smelt::plan
