#include "exported/python_numbers.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <numbers>
#include <optional>
#include <unordered_map>

#include "shapes/size_program.h"

namespace smelt::exported {
namespace {

using values::Items;
using values::Kind;
using values::Node;
using values::Value;

double real(const Number& n) {
    return std::visit([](auto x) { return static_cast<double>(x); }, n);
}

std::optional<int64_t> whole(const Number& n) {  // of an int or a bool
    if (const auto* x = std::get_if<int64_t>(&n)) return *x;
    if (const auto* x = std::get_if<bool>(&n)) return *x;
    return {};
}

[[noreturn]] void fail(const char* why) {
    throw NumberError(why);
}

int64_t integer(double x) {
    if (!(x >= -0x1p63 && x < 0x1p63)) fail("a number of more than 64 bits");
    return static_cast<int64_t>(x);
}

int64_t calculated(shapes::Operation operation, int64_t a, int64_t b) {
    int64_t result = 0;
    const shapes::Status status = shapes::compute(operation, a, b, &result);
    if (status == shapes::Status::overflow) fail("a number of more than 64 bits");
    if (status == shapes::Status::division_by_zero) fail("division by zero");
    return result;
}

double remainder(double a, double b) {
    if (b == 0) fail("division by zero");
    double r = std::fmod(a, b);
    if (r != 0 && (r < 0) != (b < 0)) r += b;
    return r == 0 ? std::copysign(0.0, b) : r;
}

double floor_quotient(double a, double b) {
    const double r = remainder(a, b);
    const double quotient = (a - r) / b;
    if (quotient == 0) return std::copysign(0.0, a / b);
    const double floor = std::floor(quotient);
    return quotient - floor > 0.5 ? floor + 1 : floor;
}

Number power(const Number& a, const Number& b) {
    const auto x = whole(a), y = whole(b);
    if (x && y && *y >= 0) {
        int64_t result = 1;
        for (int64_t i = 0; i < *y && !(result == 0 || (*x == 1) || (*x == -1 && i > 1)); ++i)
            result = calculated(shapes::Operation::multiply, result, *x);
        if (*x == -1) return int64_t{*y % 2 ? -1 : 1};
        return result;
    }
    if (real(a) == 0 && real(b) < 0) fail("division by zero");
    if (real(a) < 0 && real(b) != std::floor(real(b))) fail("a complex number");
    return std::pow(real(a), real(b));
}

// Whether a < b, exactly: a float of 53 bits and an int of 64 compare as numbers.
int compared(const Number& a, const Number& b) {  // -1, 0, 1; 2: unordered
    const auto x = whole(a), y = whole(b);
    if (x && y) return *x < *y ? -1 : *x > *y;
    const long double p = x ? static_cast<long double>(*x) : real(a),
                      q = y ? static_cast<long double>(*y) : real(b);
    if (std::isnan(p) || std::isnan(q)) return 2;
    return p < q ? -1 : p > q;
}

Number rounded(double x) {
    return integer(std::nearbyint(x));
}

Number rounded_to(const Number& a, const Number& digits) {
    const auto n = whole(digits);
    if (!n) fail("digits are an int");
    if (whole(a)) {
        if (*n < 0) fail("rounding of an int to tens");
        return *whole(a);
    }
    const double x = real(a);
    if (!std::isfinite(x) || *n > 300) return x;
    if (*n < 0) fail("rounding to tens");
    std::array<char, 700> text;
    const auto end = std::to_chars(text.data(), text.data() + text.size(), x, std::chars_format::fixed,
                                   static_cast<int>(*n));
    double made = 0;
    std::from_chars(text.data(), end.ptr, made);
    return made;
}

using Function = Number (*)(const Number& a, const Number& b);

template <class T>
Number arithmetic(const Number& a, const Number& b, shapes::Operation operation, T of_reals) {
    const auto x = whole(a), y = whole(b);
    if (x && y) return calculated(operation, *x, *y);
    return of_reals(real(a), real(b));
}

// What a math function gives; it fails where Python's raises, on a NaN or infinity that the operands are not.
template <class T>
Number math(T function, const Number& a, const Number& b = 0.0) {
    const double made = function(real(a), real(b));
    const bool finite = std::isfinite(real(a)) && std::isfinite(real(b));
    if (!std::isfinite(made) &&
        (finite || (std::isnan(made) && !std::isnan(real(a)) && !std::isnan(real(b)))))
        fail("math domain error");
    return made;
}

#define SMELT_MATH(name, expression)                                                                  \
    {name, [](const Number& m, const Number& n) -> Number {                                           \
         return math([](double a, [[maybe_unused]] double b) -> double { return expression; }, m, n); \
     }}
#define SMELT_NUMBER(name, expression) \
    {name, [](const Number& a, [[maybe_unused]] const Number& b) -> Number { return expression; }}

const std::unordered_map<std::string, Function>& functions() {
    using shapes::Operation;
    static const std::unordered_map<std::string, Function> made{
        SMELT_NUMBER("float32", static_cast<double>(static_cast<float>(real(a)))),
        SMELT_NUMBER("add", arithmetic(a, b, Operation::add, [](double x, double y) { return x + y; })),
        SMELT_NUMBER("sub", arithmetic(a, b, Operation::subtract, [](double x, double y) { return x - y; })),
        SMELT_NUMBER("mul", arithmetic(a, b, Operation::multiply, [](double x, double y) { return x * y; })),
        SMELT_NUMBER("truediv", real(b) == 0 ? (fail("division by zero"), 0.0) : real(a) / real(b)),
        SMELT_NUMBER("floordiv", arithmetic(a, b, Operation::floor_divide, floor_quotient)),
        SMELT_NUMBER("mod", arithmetic(a, b, Operation::modulo, remainder)),
        SMELT_NUMBER("pow", power(a, b)),
        SMELT_NUMBER("neg",
                     whole(a) ? Number(calculated(Operation::negate, *whole(a), 0)) : Number(-real(a))),
        SMELT_NUMBER("abs", whole(a) ? Number(calculated(Operation::absolute, *whole(a), 0))
                                     : Number(std::fabs(real(a)))),
        SMELT_NUMBER("lt", compared(a, b) == -1),
        SMELT_NUMBER("le", compared(a, b) == -1 || compared(a, b) == 0),
        SMELT_NUMBER("gt", compared(a, b) == 1),
        SMELT_NUMBER("ge", compared(a, b) == 1 || compared(a, b) == 0),
        SMELT_NUMBER("eq", compared(a, b) == 0),
        SMELT_NUMBER("ne", compared(a, b) != 0),
        SMELT_NUMBER("min", compared(b, a) == -1 ? b : a),
        SMELT_NUMBER("max", compared(b, a) == 1 ? b : a),
        SMELT_NUMBER("int", whole(a) ? *whole(a) : integer(std::trunc(real(a)))),
        SMELT_NUMBER("float", real(a)),
        SMELT_NUMBER("round", whole(a) ? Number(*whole(a)) : rounded(real(a))),
        SMELT_NUMBER("round_to", rounded_to(a, b)),
        SMELT_NUMBER("floor", whole(a) ? *whole(a) : integer(std::floor(real(a)))),
        SMELT_NUMBER("ceil", whole(a) ? *whole(a) : integer(std::ceil(real(a)))),
        SMELT_NUMBER("trunc", whole(a) ? *whole(a) : integer(std::trunc(real(a)))),
        SMELT_NUMBER("isnan", std::isnan(real(a))),
        SMELT_NUMBER("isinf", std::isinf(real(a))),
        SMELT_NUMBER("isfinite", std::isfinite(real(a))),
        SMELT_NUMBER("fabs", std::fabs(real(a))),
        SMELT_NUMBER("copysign", std::copysign(real(a), real(b))),
        SMELT_NUMBER("degrees", real(a) * (180.0 / std::numbers::pi)),
        SMELT_NUMBER("radians", real(a) * (std::numbers::pi / 180.0)),
        SMELT_MATH("sqrt", std::sqrt(a)),
        SMELT_MATH("exp", std::exp(a)),
        SMELT_MATH("expm1", std::expm1(a)),
        SMELT_MATH("log", std::log(a)),
        SMELT_MATH("log2", std::log2(a)),
        SMELT_MATH("log10", std::log10(a)),
        SMELT_MATH("log1p", std::log1p(a)),
        SMELT_MATH("sin", std::sin(a)),
        SMELT_MATH("cos", std::cos(a)),
        SMELT_MATH("tan", std::tan(a)),
        SMELT_MATH("asin", std::asin(a)),
        SMELT_MATH("acos", std::acos(a)),
        SMELT_MATH("atan", std::atan(a)),
        SMELT_MATH("sinh", std::sinh(a)),
        SMELT_MATH("cosh", std::cosh(a)),
        SMELT_MATH("tanh", std::tanh(a)),
        SMELT_MATH("asinh", std::asinh(a)),
        SMELT_MATH("acosh", std::acosh(a)),
        SMELT_MATH("atanh", std::atanh(a)),
        SMELT_MATH("erf", std::erf(a)),
        SMELT_MATH("erfc", std::erfc(a)),
        SMELT_MATH("pow_float", std::pow(a, b)),
        SMELT_MATH("fmod", std::fmod(a, b)),
        SMELT_MATH("atan2", std::atan2(a, b)),
        SMELT_MATH("hypot", std::hypot(a, b)),
        SMELT_MATH("log_base", std::log(a) / std::log(b)),
    };
    return made;
}
#undef SMELT_MATH
#undef SMELT_NUMBER

std::string joined(const std::vector<std::string>& parts, const char* between = ", ") {
    std::string made;
    for (size_t i = 0; i < parts.size(); ++i) made += (i ? between : "") + parts[i];
    return made;
}

std::string tuple_repr(const std::vector<std::string>& parts) {
    return "(" + joined(parts) + (parts.size() == 1 ? ",)" : ")");
}

std::string complex_repr(c10::complex<double> x) {
    auto part = [](double n) {
        std::string text = repr(n);
        return text.ends_with(".0") ? text.substr(0, text.size() - 2) : text;
    };
    const std::string imaginary = part(x.imag()) + "j";
    if (x.real() == 0 && !std::signbit(x.real())) return imaginary;
    const bool has_sign = imaginary[0] == '-';
    return "(" + part(x.real()) + (has_sign ? "" : "+") + imaginary + ")";
}

}  // namespace

Number computed(const Value& tree, const std::function<Number(size_t)>& leaf) {
    if (const auto* x = tree.get<bool>()) return *x;
    if (const auto* x = tree.get<int64_t>()) return *x;
    if (const auto* x = tree.get<double>()) return *x;
    const Items& items = values::tuple(tree);
    const std::string& name = values::text(items.at(0));
    if (name == "leaf") return leaf(static_cast<size_t>(values::integer(items.at(1))));
    const auto found = functions().find(name);
    if (found == functions().end()) fail("an unknown operation");
    const Number a = computed(items.at(1), leaf);
    return found->second(a, items.size() > 2 ? computed(items[2], leaf) : Number(0.0));
}

std::string type_of(const Number& number) {
    return std::array<const char*, 3>{"bool", "int", "float"}[number.index()];
}

std::string repr(double x) {
    if (std::isnan(x)) return "nan";
    if (std::isinf(x)) return x < 0 ? "-inf" : "inf";
    std::array<char, 64> text;
    const double size = std::fabs(x);
    const bool is_fixed = size == 0 || (size >= 1e-4 && size < 1e16);
    const auto end = std::to_chars(text.data(), text.data() + text.size(), x,
                                   is_fixed ? std::chars_format::fixed : std::chars_format::scientific);
    std::string made(text.data(), end.ptr);
    if (is_fixed && made.find('.') == std::string::npos) made += ".0";
    return made;
}

std::string repr(const std::string& text) {
    const char quote =
        text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
    std::string made(1, quote);
    for (const char c : text) {
        if (c == quote || c == '\\') {
            made += '\\';
            made += c;
        } else if (c == '\n') {
            made += "\\n";
        } else if (c == '\r') {
            made += "\\r";
        } else if (c == '\t') {
            made += "\\t";
        } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
            constexpr const char* kDigits = "0123456789abcdef";
            made += "\\x";
            made += kDigits[(c >> 4) & 0xF];
            made += kDigits[c & 0xF];
        } else {
            made += c;
        }
    }
    return made + quote;
}

std::string repr(const c10::IValue& value) {
    if (value.isNone()) return "None";
    if (value.isBool()) return value.toBool() ? "True" : "False";
    if (value.isInt()) return std::to_string(value.toInt());
    if (value.isDouble()) return repr(value.toDouble());
    if (value.isComplexDouble()) return complex_repr(value.toComplexDouble());
    if (value.isString()) return repr(value.toStringRef());
    if (value.isDevice()) return "device(type='" + value.toDevice().str() + "')";
    std::vector<std::string> parts;
    if (value.isTuple()) {
        for (const c10::IValue& item : value.toTupleRef().elements()) parts.push_back(repr(item));
        return tuple_repr(parts);
    }
    if (value.isList()) {
        for (const c10::IValue& item : value.toListRef()) parts.push_back(repr(item));
        return "[" + joined(parts) + "]";
    }
    return value.tagKind();
}

std::string repr(const Value& value) {
    if (value.is_none()) return "None";
    if (const auto* x = value.get<bool>()) return *x ? "True" : "False";
    if (const auto* x = value.get<int64_t>()) return std::to_string(*x);
    if (const auto* x = value.get<double>()) return repr(*x);
    if (const auto* x = value.get<c10::complex<double>>()) return complex_repr(*x);
    if (const auto* x = value.get<std::string>()) return repr(*x);
    if (const auto* x = value.get<c10::Device>()) return "device(type='" + x->str() + "')";
    const Node* node = value.get<Node>();
    if (!node) return "a value";
    std::vector<std::string> parts;
    if (node->kind == Kind::dict) {
        for (size_t i = 0; i < node->items.size(); i += 2)
            parts.push_back(repr(node->items[i]) + ": " + repr(node->items[i + 1]));
        return "{" + joined(parts) + "}";
    }
    for (const Value& item : node->items) parts.push_back(repr(item));
    return node->kind == Kind::list ? "[" + joined(parts) + "]" : tuple_repr(parts);
}

}  // namespace smelt::exported
