#include "guards/checks/integer_program.h"

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstring>

namespace smelt::guards {

namespace {

using shapes::Operation;

struct NamedOperation {
    const char* name;
    int operands;
    Operation operation;
    bool negated = false;
};

// The operations of smelt/shapes/number_operations.py that return ints or compare them; rounding an int returns that int.
constexpr NamedOperation kOperations[] = {
    {"add", 2, Operation::add},
    {"sub", 2, Operation::subtract},
    {"mul", 2, Operation::multiply},
    {"floordiv", 2, Operation::floor_divide},
    {"mod", 2, Operation::modulo},
    {"min", 2, Operation::minimum},
    {"max", 2, Operation::maximum},
    {"neg", 1, Operation::negate},
    {"abs", 1, Operation::absolute},
    {"int", 1, Operation::same},
    {"floor", 1, Operation::same},
    {"ceil", 1, Operation::same},
    {"trunc", 1, Operation::same},
    {"round", 1, Operation::same},
    {"lt", 2, Operation::less},
    {"le", 2, Operation::less_or_equal},
    {"eq", 2, Operation::equal},
    {"ne", 2, Operation::equal, true},
    {"gt", 2, Operation::less_or_equal, true},
    {"ge", 2, Operation::less, true},
};

bool to_int64(PyObject* number, int64_t* out) {
    if (!PyLong_CheckExact(number)) return false;
    int too_large = 0;
    *out = PyLong_AsLongLongAndOverflow(number, &too_large);
    return !too_large;
}

}  // namespace

void IntegerProgram::push_input(Input input) {
    is_known_ &= !compares_;
    inputs_.push_back(input);
    stack_.push_back(-static_cast<int64_t>(inputs_.size()));
}

void IntegerProgram::push_result(shapes::Instruction instruction) {
    stack_.push_back(static_cast<int64_t>(instructions_.size()));
    instructions_.push_back(instruction);
}

void IntegerProgram::push_constant(PyObject* number) {
    int64_t value = 0;
    is_known_ &= to_int64(number, &value) && !compares_;
    push_result({Operation::constant, value, 0});
}

void IntegerProgram::apply(const char* name, int operands) {
    const auto* row = std::find_if(std::begin(kOperations), std::end(kOperations), [&](const auto& row) {
        return std::strcmp(row.name, name) == 0 && row.operands == operands;
    });
    const auto count = static_cast<size_t>(operands);
    is_known_ &= row != std::end(kOperations) && !compares_ && stack_.size() >= count;
    if (!is_known_) return;
    const int64_t b = stack_.back(), a = stack_[stack_.size() - count];
    stack_.resize(stack_.size() - count);
    compares_ = shapes::is_comparison(row->operation);
    is_negated_ = row->negated;
    push_result({row->operation, a, b});
}

bool IntegerProgram::finish(PyObject* expected) {
    if (!is_known_ || stack_.size() != 1) return false;
    const auto slot = [&](int64_t value) {
        return value < 0 ? -1 - value : static_cast<int64_t>(inputs_.size()) + value;
    };
    for (shapes::Instruction& i : instructions_)
        if (i.operation != Operation::constant) i = {i.operation, slot(i.a), slot(i.b)};
    if (!compares_) return expected == reinterpret_cast<PyObject*>(&PyLong_Type);
    wanted_ = (expected == Py_True) != is_negated_;
    return PyBool_Check(expected);
}

IntegerProgram::Answer IntegerProgram::run(const Pass& pass) const {
    c10::SmallVector<int64_t, 32> slots;
    slots.resize_for_overwrite(inputs_.size() + instructions_.size());
    for (size_t i = 0; i < inputs_.size(); i++) {
        const auto [node, word] = inputs_[i];
        if (word >= 0)
            slots[i] = pass.words[word];
        else if (!to_int64(pass.values[node], &slots[i]))
            return Answer::Unknown;
    }
    switch (shapes::run(instructions_, inputs_.size(), slots.data())) {
        case shapes::Status::overflow:
            return Answer::Unknown;
        case shapes::Status::division_by_zero:
            return Answer::No;
        case shapes::Status::ok:
            break;
    }
    return !compares_ || slots.back() == wanted_ ? Answer::Yes : Answer::No;
}

}  // namespace smelt::guards
