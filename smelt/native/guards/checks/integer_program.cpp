#include "guards/checks/integer_program.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace smelt::guards {

// The operations of smelt/graph/numbers.py that return ints or compare them; rounding an int returns that int.
const IntegerProgram::Row IntegerProgram::kRows[] = {
    {"add", 2, Op::Add},    {"sub", 2, Op::Sub},     {"mul", 2, Op::Mul},     {"floordiv", 2, Op::FloorDiv},
    {"mod", 2, Op::Mod},    {"min", 2, Op::Min},     {"max", 2, Op::Max},     {"neg", 1, Op::Neg},
    {"abs", 1, Op::Abs},    {"int", 1, Op::Same},    {"floor", 1, Op::Same},  {"ceil", 1, Op::Same},
    {"trunc", 1, Op::Same}, {"round", 1, Op::Same},  {"lt", 2, Op::Lt},       {"le", 2, Op::Le},
    {"eq", 2, Op::Eq},      {"ne", 2, Op::Eq, true}, {"gt", 2, Op::Le, true}, {"ge", 2, Op::Lt, true},
};

void IntegerProgram::push(Step step) {
    steps_.push_back(step);
    is_known_ &= ++depth_ <= kDepth && !compares_;
}

void IntegerProgram::push_constant(PyObject* number) {
    int too_large = 0;
    const int64_t value = PyLong_CheckExact(number) ? PyLong_AsLongLongAndOverflow(number, &too_large) : 0;
    is_known_ &= PyLong_CheckExact(number) && !too_large;
    push({Op::Constant, -1, value});
}

void IntegerProgram::apply(const char* name, int operands) {
    const Row* row = std::find_if(std::begin(kRows), std::end(kRows), [&](const Row& row) {
        return std::strcmp(row.name, name) == 0 && row.operands == operands;
    });
    is_known_ &= row != std::end(kRows) && !compares_;
    depth_ -= operands - 1;
    if (!is_known_) return;
    compares_ = is_comparison(row->op);
    is_negated_ = row->negated;
    steps_.push_back({row->op, -1, 0});
}

bool IntegerProgram::finish(PyObject* expected) {
    if (!is_known_ || depth_ != 1) return false;
    if (!compares_) return expected == reinterpret_cast<PyObject*>(&PyLong_Type);
    wanted_ = (expected == Py_True) != is_negated_;
    return PyBool_Check(expected);
}

IntegerProgram::Answer IntegerProgram::read(const Step& step, const Pass& pass, int64_t* out) {
    if (step.op == Op::Constant) {
        *out = step.number;
        return Answer::Yes;
    }
    if (step.op == Op::Size) {
        *out = pass.words[step.index];
        return Answer::Yes;
    }
    PyObject* x = pass.values[step.index];
    if (!PyLong_CheckExact(x)) return Answer::Unknown;
    int too_large = 0;
    *out = PyLong_AsLongLongAndOverflow(x, &too_large);
    return too_large ? Answer::Unknown : Answer::Yes;
}

// Computes as Python does; a unary operation uses `a`.
IntegerProgram::Answer IntegerProgram::compute(Op op, int64_t a, int64_t b, int64_t* out) {
    bool overflows = false;
    switch (op) {
        case Op::Add:
            overflows = __builtin_add_overflow(a, b, out);
            break;
        case Op::Sub:
            overflows = __builtin_sub_overflow(a, b, out);
            break;
        case Op::Mul:
            overflows = __builtin_mul_overflow(a, b, out);
            break;
        case Op::FloorDiv:
        case Op::Mod:
            if (b == 0) return Answer::No;
            if (b == -1) {  // the quotient of the smallest number overflows
                overflows = op == Op::FloorDiv && __builtin_sub_overflow(int64_t{0}, a, out);
                if (op == Op::Mod) *out = 0;
            } else {
                const bool is_below = a % b != 0 && (a < 0) != (b < 0);  // C rounds towards zero
                *out = op == Op::FloorDiv ? a / b - is_below : a % b + (is_below ? b : 0);
            }
            break;
        case Op::Min:
            *out = std::min(a, b);
            break;
        case Op::Max:
            *out = std::max(a, b);
            break;
        case Op::Neg:
        case Op::Abs:
            if (op == Op::Neg || a < 0)
                overflows = __builtin_sub_overflow(int64_t{0}, a, out);
            else
                *out = a;
            break;
        default:  // Same
            *out = a;
    }
    return overflows ? Answer::Unknown : Answer::Yes;
}

IntegerProgram::Answer IntegerProgram::compare(Op op, int64_t a, int64_t b) const {
    const bool found = op == Op::Lt ? a < b : op == Op::Le ? a <= b : a == b;
    return found == wanted_ ? Answer::Yes : Answer::No;
}

IntegerProgram::Answer IntegerProgram::run(const Pass& pass) const {
    int64_t stack[kDepth + 1];
    int64_t* top = stack;  // one past the last number
    for (const Step& step : steps_) {
        Answer answer;
        if (step.op <= Op::Constant) {
            answer = read(step, pass, top);
            top++;
        } else if (is_comparison(step.op)) {
            return compare(step.op, top[-2], top[-1]);
        } else if (step.op >= Op::Neg) {
            answer = compute(step.op, top[-1], 0, &top[-1]);
        } else {
            answer = compute(step.op, top[-2], top[-1], &top[-2]);
            top--;
        }
        if (answer != Answer::Yes) return answer;
    }
    return Answer::Yes;
}

}  // namespace smelt::guards
