// Values as arguments of torch's operators.
#pragma once
#include "torch_operators.h"
#include "values/value.h"

namespace smelt::plan {

// A value for an argument of a schema, converted as torch converts Python objects. Numbers are accepted as tensors. Throws
// FormatError for a value that the argument does not take.
c10::IValue boxed(const values::Value& value, const c10::Argument& argument);

}  // namespace smelt::plan
