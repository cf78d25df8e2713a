// Numbers of a program that follow from sizes: where they stand, and how they are computed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "plan/program.h"

namespace smelt::plan {

// Which number of a step. In vectors, `position` says which.
enum class Field : uint8_t {
    alloc_shape,
    alloc_stride,
    view_shape,
    view_stride,
    view_offset,
    launch_extent,
    launch_grain,
    launch_size,
    together_end,
    together_grain,
    expected_shape,
    expected_stride
};

// A number that is what slot `slot` holds. `index`: into the vector of the step's kind; `out`: of an ATen call's results.
struct SizedNumber {
    Field field;
    size_t index, out, position, slot;
};

// An argument of an ATen call that is such a number, or a list with some.
struct SizedArgument {
    size_t index, argument;
    bool is_list;
    std::vector<std::pair<size_t, size_t>> slots;  // position in the list, slot
};

// Of a program that is read with slots in places of numbers.
struct Sized {
    std::vector<SizedNumber> numbers;
    std::vector<SizedArgument> arguments;
};

// Puts what slots hold into `program`, which is a copy of what was read with `sized`. Arena places are not touched.
void put_numbers(const Sized& sized, const std::vector<int64_t>& slots, Program& program);

}  // namespace smelt::plan
