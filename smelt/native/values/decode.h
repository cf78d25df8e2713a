// Decodes values (docs/plan.md has the encoding; smelt/plan/value_encoding.py writes it).
#pragma once
#include <cstdint>
#include <functional>
#include <string_view>

#include "values/value.h"

namespace smelt::values {

// The number of fields of a record of this kind; throws FormatError for an unknown kind.
using FieldsOf = std::function<size_t(uint64_t kind)>;

// The one value that `data` holds. Throws FormatError for data that end early or late, and for unknown tags and names.
Value decode(std::string_view data, const FieldsOf& fields_of);

// The name of a dtype, without "torch."; that of a layout.
std::string_view name_of(c10::ScalarType dtype);
std::string_view name_of(c10::Layout layout);

}  // namespace smelt::values
