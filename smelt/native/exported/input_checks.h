// Checks of a program's arguments, with the texts of smelt/exported/input_checks.py.
#pragma once
#include <ATen/core/ivalue.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "exported/python_numbers.h"
#include "exported/tables.h"
#include "include/smelt/program.h"

namespace smelt::exported {

// The tensors of the state at one moment, by their number.
using Tensors = std::vector<at::Tensor>;

// Arguments as the example passed them.
struct Bound {
    Program::Arguments positional;
    std::map<std::string, c10::IValue> keywords;
};

// Binds arguments to the signature. Throws InputError.
Bound bound(const Method& method, const Program::Arguments& arguments, const Program::Keywords& keywords);

// Reads objects at paths in the arguments of one call, and tensors of the state, each once. Where the export had a named tuple
// or dataclass, it reads a tuple or dict of the fields as a dict in the order of the fields.
class ArgumentReader {
  public:
    ArgumentReader(const Method& method, const Bound& bound, const Tensors& state,
                   const std::map<std::string, size_t>& names)
        : method_(method), bound_(bound), state_(state), names_(names), seen_(method.places.size()) {}

    // Throws InputError if there is none.
    const c10::IValue& operator()(Path path);

    // The object as it was passed, whether or not it reads as a dict of fields.
    const c10::IValue& passed(Path path);

    Number number(const NumberOf& number);

  private:
    std::optional<c10::IValue> read(Path path);
    c10::IValue with_fields(c10::IValue x, const Fields& fields);
    std::string text(Path path) const;

    const Method& method_;
    const Bound& bound_;
    const Tensors& state_;
    const std::map<std::string, size_t>& names_;
    std::vector<std::optional<c10::IValue>> seen_;
    std::vector<std::pair<c10::IValue, c10::IValue>> with_fields_;  // an argument, and the dict of its fields
};

// Checks the arguments and returns the values of the size symbols, then those of Method::program. Throws InputError for
// arguments that break a rule.
std::vector<int64_t> check(const Method& method, ArgumentReader& read);

// The sizes of a tensor as Python shows them.
std::string shape_text(const at::Tensor& t);

// A constant as a boxed value. Throws InputError for one that has no C++ form.
c10::IValue constant(const values::Value& value);

}  // namespace smelt::exported
