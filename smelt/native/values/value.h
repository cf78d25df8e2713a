// Values of plans and tables: what bytes decode to (values/decode.cpp), and what Python passes (bindings/values.cpp).
//
// Readers take a value by the type that they expect; another type throws FormatError. So no reader trusts its data.
#pragma once
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace smelt::values {

// Data that has no meaning: another type or number than is expected, or bytes that end early.
struct FormatError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Value;
using Items = std::vector<Value>;

struct Bytes {
    std::string data;
};

struct LargeInteger {  // of more than 64 bits: two's complement, little-endian
    std::string data;
};

// The kind is the tag in the encoding.
enum class Kind : char {
    tuple = '(',
    list = '[',
    dict = '{',          // key, value, key, value, ...
    symbol = 'y',        // name, least and largest value
    floor_divide = '/',  // dividend, divisor
    modulo = '%',
    sum = 'z',        // constant, then a tuple for each term: coefficient, factors
    operation = 'o',  // an operator: name, overload
    record = 'R'      // its fields; `number` is the kind of record
};

struct Node {
    Kind kind;
    uint64_t number = 0;
    Items items = {};
};

using Variant = std::variant<std::monostate, bool, int64_t, double, c10::complex<double>, std::string, Bytes,
                             LargeInteger, c10::ScalarType, c10::Layout, c10::MemoryFormat, c10::Device, Node,
                             c10::IValue>;  // IValue: an object without an encoding, such as a generator

struct Value : Variant {
    using Variant::Variant;

    bool is_none() const { return std::holds_alternative<std::monostate>(*this); }
    template <class T>
    const T* get() const {
        return std::get_if<T>(static_cast<const Variant*>(this));
    }
};

template <class T>
const T& as(const Value& value, const char* expected) {
    const T* found = value.get<T>();
    if (!found) throw FormatError(std::string(expected) + " is expected");
    return *found;
}

inline int64_t integer(const Value& value) {
    return as<int64_t>(value, "an integer");
}

inline bool boolean(const Value& value) {
    return as<bool>(value, "a boolean");
}

inline const std::string& text(const Value& value) {
    return as<std::string>(value, "a text");
}

inline const std::string& bytes(const Value& value) {
    return as<Bytes>(value, "bytes").data;
}

// A number >= 0 below `end`.
inline size_t index(const Value& value, size_t end) {
    const int64_t found = integer(value);
    if (found < 0 || static_cast<uint64_t>(found) >= end)
        throw FormatError("a number from 0 to " + std::to_string(end) + " is expected");
    return static_cast<size_t>(found);
}

inline const Items& items(const Value& value, Kind kind, const char* expected) {
    const Node& node = as<Node>(value, expected);
    if (node.kind != kind) throw FormatError(std::string(expected) + " is expected");
    return node.items;
}

inline const Items& tuple(const Value& value) {
    return items(value, Kind::tuple, "a tuple");
}

inline const Items& tuple(const Value& value, size_t size) {
    const Items& found = tuple(value);
    if (found.size() != size) throw FormatError("a tuple of " + std::to_string(size) + " is expected");
    return found;
}

// The fields of a record of this kind.
inline const Items& record(const Value& value, uint64_t number, size_t fields) {
    const Node& node = as<Node>(value, "a record");
    if (node.kind != Kind::record || node.number != number || node.items.size() != fields)
        throw FormatError("a record " + std::to_string(number) + " is expected");
    return node.items;
}

template <class Read>
auto each(const Value& value, Read read) {
    std::vector<std::decay_t<decltype(read(value))>> made;
    const Items& found = tuple(value);
    made.reserve(found.size());
    for (const Value& item : found) made.push_back(read(item));
    return made;
}

inline std::vector<int64_t> integers(const Value& value) {
    return each(value, integer);
}

inline std::vector<std::string> texts(const Value& value) {
    return each(value, text);
}

}  // namespace smelt::values
