// Numbers as Python computes them (smelt/shapes/number_operations.py), on 64-bit ints, floats and bools.
#pragma once
#include <ATen/core/ivalue.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <variant>

#include "values/value.h"

namespace smelt::exported {

using Number = std::variant<bool, int64_t, double>;

// Where Python raises an ArithmeticError, ValueError or TypeError, and for ints of more than 64 bits.
struct NumberError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// The value of a tree of operations; `leaf(i)` is its i-th leaf. Throws NumberError.
Number computed(const values::Value& tree, const std::function<Number(size_t)>& leaf);

// "int", "float" or "bool".
std::string type_of(const Number& number);

// What Python's repr gives.
std::string repr(const c10::IValue& value);
std::string repr(const values::Value& value);
std::string repr(const std::string& text);
std::string repr(double number);

}  // namespace smelt::exported
