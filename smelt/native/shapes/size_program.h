// The evaluator of size expressions: programs on 64-bit ints, with the results of Python's ints.
//
// A program computes slots. The first slots are its inputs (sizes and other ints); each instruction computes the next slot
// from earlier ones. Guards (guards/checks/integer_program.h) and symbolic plans (plan/plan_template.cpp) run it, and the
// sources of a SizeDispatch use its division.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace smelt::shapes {

// The order of the first five is that of smelt/plan/size_program.py. A comparison gives 0 or 1.
enum class Operation : uint8_t {
    constant,
    add,
    multiply,
    floor_divide,
    modulo,
    subtract,
    minimum,
    maximum,
    negate,
    absolute,
    same,
    less,
    less_or_equal,
    equal
};

inline bool is_comparison(Operation operation) {
    return operation >= Operation::less;
}

// Operates on the slots `a` and `b`, a unary operation on `a`; a constant is `a` itself.
struct Instruction {
    Operation operation;
    int64_t a, b;
};

// Rounds down, as Python does and C does not. `b` is neither 0 nor -1.
inline int64_t floor_divide(int64_t a, int64_t b) {
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

inline int64_t modulo(int64_t a, int64_t b) {
    const int64_t remainder = a % b;
    return remainder != 0 && (a < 0) != (b < 0) ? remainder + b : remainder;
}

enum class Status : uint8_t { ok, overflow, division_by_zero };

inline Status compute(Operation operation, int64_t a, int64_t b, int64_t* result) {
    bool overflows = false;
    switch (operation) {
        case Operation::constant:
        case Operation::same:
            *result = a;
            break;
        case Operation::add:
            overflows = __builtin_add_overflow(a, b, result);
            break;
        case Operation::subtract:
            overflows = __builtin_sub_overflow(a, b, result);
            break;
        case Operation::multiply:
            overflows = __builtin_mul_overflow(a, b, result);
            break;
        case Operation::floor_divide:
            if (b == 0) return Status::division_by_zero;
            if (b == -1)  // the quotient of the smallest number overflows
                overflows = __builtin_sub_overflow(int64_t{0}, a, result);
            else
                *result = floor_divide(a, b);
            break;
        case Operation::modulo:
            if (b == 0) return Status::division_by_zero;
            *result = b == -1 ? 0 : modulo(a, b);
            break;
        case Operation::minimum:
            *result = std::min(a, b);
            break;
        case Operation::maximum:
            *result = std::max(a, b);
            break;
        case Operation::negate:
            overflows = __builtin_sub_overflow(int64_t{0}, a, result);
            break;
        case Operation::absolute:
            if (a < 0)
                overflows = __builtin_sub_overflow(int64_t{0}, a, result);
            else
                *result = a;
            break;
        case Operation::less:
            *result = a < b;
            break;
        case Operation::less_or_equal:
            *result = a <= b;
            break;
        case Operation::equal:
            *result = a == b;
            break;
    }
    return overflows ? Status::overflow : Status::ok;
}

// Computes the slots after the first `n_inputs`, one per instruction. Stops at an instruction that fails.
inline Status run(const std::vector<Instruction>& instructions, size_t n_inputs, int64_t* slots) {
    int64_t* next = slots + n_inputs;
    for (const Instruction& i : instructions) {
        const bool is_constant = i.operation == Operation::constant;
        const Status status = is_constant ? compute(i.operation, i.a, 0, next)
                                          : compute(i.operation, slots[i.a], slots[i.b], next);
        if (status != Status::ok) return status;
        ++next;
    }
    return Status::ok;
}

}  // namespace smelt::shapes
