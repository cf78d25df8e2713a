#include "exported/input_checks.h"

#include <ATen/core/Tensor.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <unordered_map>

#include "values/decode.h"

namespace smelt::exported {
namespace {

using c10::IValue;
using values::Items;
using values::Kind;
using values::Node;
using values::Value;

constexpr int64_t kInfinite = int64_t{1} << 62;  // smelt/shapes/expr.py
constexpr int kPositionalOnly = 0, kEither = 1, kVarPositional = 2, kKeywordOnly = 3, kVarKeyword = 4;

std::string with_commas(const std::vector<std::string>& parts) {
    return c10::Join(", ", parts);
}

// The name of the Python class of a value.
std::string type_name(const IValue& x) {
    if (x.isTensor()) return "Tensor";
    if (x.isNone()) return "NoneType";
    if (x.isBool()) return "bool";
    if (x.isInt()) return "int";
    if (x.isDouble()) return "float";
    if (x.isComplexDouble()) return "complex";
    if (x.isString()) return "str";
    if (x.isTuple()) return "tuple";
    if (x.isList()) return "list";
    if (x.isGenericDict()) return "dict";
    if (x.isDevice()) return "device";
    return x.tagKind();
}

bool is_of_class(const IValue& x, const std::string& cls) {
    if (x.isTensor()) return cls == "torch.Tensor" || cls == "torch.nn.parameter.Parameter";
    return cls == (x.isDevice() ? "torch." : "builtins.") + type_name(x);
}

std::string kind_text(const IValue& x) {
    if (x.isTensor()) return "a Tensor of " + shape_text(x.toTensor());
    if (x.isGenericDict()) {
        std::vector<std::string> keys;
        for (const auto& entry : x.toGenericDict()) keys.push_back(repr(entry.key()));
        return "a dict with keys [" + with_commas(keys) + "]";
    }
    if (x.isList()) return "a list of length " + std::to_string(x.toListRef().size());
    if (x.isTuple()) return "a tuple of length " + std::to_string(x.toTupleRef().elements().size());
    return type_name(x);
}

std::string short_text(const IValue& x) {
    const bool is_whole = x.isTensor() || x.isGenericDict() || x.isList() || x.isTuple();
    const std::string text = is_whole ? kind_text(x) : repr(x);
    return text.size() < 80 ? text : text.substr(0, 77) + "...";
}

std::optional<Number> number_of(const IValue& x) {
    if (x.isBool()) return x.toBool();
    if (x.isInt()) return x.toInt();
    if (x.isDouble()) return x.toDouble();
    return {};
}

bool same(const IValue& x, const Value& value);

template <class Elements>
bool same_items(const Elements& items, const Items& values) {
    if (items.size() != values.size()) return false;
    for (size_t i = 0; i < values.size(); ++i)
        if (!same(items[i], values[i])) return false;
    return true;
}

// Whether two constants have the same type and are equal. NaN equals itself, and -0.0 differs from 0.0.
bool same(const IValue& x, const Value& value) {
    if (value.is_none()) return x.isNone();
    if (const auto* v = value.get<bool>()) return x.isBool() && x.toBool() == *v;
    if (const auto* v = value.get<int64_t>()) return x.isInt() && x.toInt() == *v;
    if (const auto* v = value.get<double>()) return x.isDouble() && repr(x.toDouble()) == repr(*v);
    if (value.get<c10::complex<double>>()) return x.isComplexDouble() && repr(x) == repr(value);
    if (const auto* v = value.get<std::string>()) return x.isString() && x.toStringRef() == *v;
    if (const auto* v = value.get<c10::Device>()) return x.isDevice() && x.toDevice() == *v;
    const Node* node = value.get<Node>();
    if (!node) return false;
    if (node->kind == Kind::tuple) return x.isTuple() && same_items(x.toTupleRef().elements(), node->items);
    if (node->kind == Kind::list) return x.isList() && same_items(x.toListRef(), node->items);
    if (node->kind != Kind::dict || !x.isGenericDict()) return false;
    const auto dict = x.toGenericDict();
    if (dict.size() * 2 != node->items.size()) return false;
    size_t i = 0;
    for (const auto& entry : dict) {
        if (!same(entry.key(), node->items[i]) || !same(entry.value(), node->items[i + 1])) return false;
        i += 2;
    }
    return true;
}

const at::Tensor& tensor(const IValue& x) {
    if (!x.isTensor()) throw InputError("a tensor is expected, got " + kind_text(x));
    return x.toTensor();
}

// ------------------------------------------------------------------------------------------------ binding

// The names of the signature that take something, where so many positional arguments and these keywords are passed.
std::set<std::string> names_taken(const Method& method) {
    std::set<std::string> taken, named;
    size_t position = 0;
    for (const Parameter& p : method.signature) {
        if (p.kind <= kEither && position < method.n_args) {
            taken.insert(p.name);
            ++position;
        }
        if (p.kind == kVarPositional && position < method.n_args) taken.insert(p.name);
        if (p.kind != kVarKeyword) named.insert(p.name);
    }
    for (const std::string& key : method.keywords) {
        if (named.count(key)) taken.insert(key);
        for (const Parameter& p : method.signature)
            if (p.kind == kVarKeyword && !named.count(key)) taken.insert(p.name);
    }
    return taken;
}

struct Passed {
    std::map<std::string, IValue> named;
    Program::Arguments rest;       // of *args
    Program::Keywords rest_named;  // of **kwargs
};

// As inspect.Signature.bind.
Passed passed(const Method& method, const Program::Arguments& arguments, const Program::Keywords& keywords) {
    Passed made;
    size_t position = 0;
    bool takes_rest = false, takes_names = false;
    std::set<std::string> by_name;
    for (const Parameter& p : method.signature) {
        if (p.kind <= kEither && position < arguments.size()) made.named[p.name] = arguments[position++];
        if (p.kind == kEither || p.kind == kKeywordOnly) by_name.insert(p.name);
        takes_rest |= p.kind == kVarPositional;
        takes_names |= p.kind == kVarKeyword;
    }
    if (position < arguments.size() && !takes_rest) throw InputError("too many positional arguments");
    made.rest.assign(arguments.begin() + static_cast<std::ptrdiff_t>(position), arguments.end());
    for (const auto& [name, value] : keywords) {
        if (by_name.count(name)) {
            if (!made.named.emplace(name, value).second)
                throw InputError("multiple values for argument " + repr(name));
        } else if (takes_names) {
            made.rest_named.emplace_back(name, value);
        } else {
            throw InputError("got an unexpected keyword argument " + repr(name));
        }
    }
    for (const Parameter& p : method.signature)
        if (p.kind != kVarPositional && p.kind != kVarKeyword && !p.has_default && !made.named.count(p.name))
            throw InputError("missing a required argument: " + repr(p.name));
    return made;
}

}  // namespace

IValue constant(const Value& value) {
    if (value.is_none()) return {};
    if (const auto* v = value.get<bool>()) return *v;
    if (const auto* v = value.get<int64_t>()) return *v;
    if (const auto* v = value.get<double>()) return *v;
    if (const auto* v = value.get<c10::complex<double>>()) return *v;
    if (const auto* v = value.get<std::string>()) return *v;
    if (const auto* v = value.get<c10::Device>()) return *v;
    if (const auto* v = value.get<c10::ScalarType>()) return static_cast<int64_t>(*v);
    if (const auto* v = value.get<c10::Layout>()) return static_cast<int64_t>(*v);
    const Node* node = value.get<Node>();
    if (node && (node->kind == Kind::tuple || node->kind == Kind::list)) {
        std::vector<IValue> items;
        for (const Value& item : node->items) items.push_back(constant(item));
        if (node->kind == Kind::tuple) return c10::ivalue::Tuple::create(std::move(items));
        c10::impl::GenericList list(c10::AnyType::get());
        for (IValue& item : items) list.push_back(std::move(item));
        return list;
    }
    if (node && node->kind == Kind::dict) {
        c10::impl::GenericDict dict(c10::AnyType::get(), c10::AnyType::get());
        for (size_t i = 0; i < node->items.size(); i += 2)
            dict.insert(constant(node->items[i]), constant(node->items[i + 1]));
        return dict;
    }
    throw InputError("a constant of the program has no form in C++");
}

Bound bound(const Method& method, const Program::Arguments& arguments, const Program::Keywords& keywords) {
    std::set<std::string> names, wanted(method.keywords.begin(), method.keywords.end());
    for (const auto& [name, value] : keywords) names.insert(name);
    if (names.size() != keywords.size()) throw InputError("a keyword is passed twice");
    if (arguments.size() == method.n_args && names == wanted)
        return {arguments, {keywords.begin(), keywords.end()}};
    Passed found = passed(method, arguments, keywords);
    const std::set<std::string> example = names_taken(method);
    Bound made;
    for (const Parameter& p : method.signature) {
        if (p.kind == kVarPositional) {
            const size_t at_export = method.n_args - std::min(method.n_args, made.positional.size());
            if (found.rest.size() != at_export)
                throw InputError(p.name + " had length " + std::to_string(at_export) +
                                 " at the export, got " + std::to_string(found.rest.size()));
            for (IValue& x : found.rest) made.positional.push_back(std::move(x));
            continue;
        }
        if (p.kind == kVarKeyword) {
            for (auto& [name, x] : found.rest_named) {
                if (!wanted.count(name))
                    throw InputError(name + " was not passed at the export: leave it out");
                made.keywords[name] = std::move(x);
            }
            for (const std::string& name : method.keywords)
                if (!made.keywords.count(name)) throw InputError(name + " was passed at the export: pass it");
            continue;
        }
        const bool is_passed = found.named.count(p.name) > 0;
        if (!example.count(p.name)) {
            if (!is_passed) continue;
            if (!p.is_stored || !same(found.named[p.name], p.default_value))
                throw InputError(p.name + " was left at its default" +
                                 (p.is_stored ? " " + repr(p.default_value) : "") +
                                 " at the export: leave it out");
            continue;
        }
        if (!is_passed) {
            if (!p.is_stored) throw InputError(p.name + " was passed at the export: pass it");
            found.named[p.name] = constant(p.default_value);
        }
        if (wanted.count(p.name))
            made.keywords[p.name] = found.named[p.name];
        else
            made.positional.push_back(found.named[p.name]);
    }
    std::vector<std::string> got;
    for (const auto& [name, value] : made.keywords) got.push_back(name);
    if (made.positional.size() != method.n_args || std::set<std::string>(got.begin(), got.end()) != wanted)
        throw InputError("the program was exported with " + std::to_string(method.n_args) +
                         " positional arguments and the keywords " +
                         (method.keywords.empty() ? "none" : with_commas(method.keywords)) + "; got " +
                         std::to_string(made.positional.size()) + " and " +
                         (got.empty() ? "none" : with_commas(got)));
    return made;
}

// ------------------------------------------------------------------------------------------------ reading

namespace {

std::optional<IValue> item_of(const IValue& base, const Value& key) {
    if (base.isGenericDict()) {
        for (const auto& entry : base.toGenericDict())
            if (same(entry.key(), key)) return entry.value();
        return {};
    }
    const auto* index = key.get<int64_t>();
    if (!index || !(base.isTuple() || base.isList())) return {};
    auto pick = [&](const auto& items) -> std::optional<IValue> {
        const auto n = static_cast<int64_t>(items.size());
        const int64_t at = *index < 0 ? *index + n : *index;
        if (at < 0 || at >= n) return {};
        return items[static_cast<size_t>(at)];
    };
    return base.isTuple() ? pick(base.toTupleRef().elements()) : pick(base.toListRef());
}

std::optional<IValue> member_of(const IValue& base, const Value& key) {
    const auto* name = key.get<std::string>();
    if (!name || !base.isTensor()) return {};
    const at::Tensor& t = base.toTensor();
    if (*name == "ndim") return t.dim();
    if (*name == "requires_grad") return t.requires_grad();
    if (*name != "shape") return {};
    std::vector<IValue> sizes(t.sizes().begin(), t.sizes().end());
    return c10::ivalue::Tuple::create(std::move(sizes));
}

// A step into the dict of an instance's fields.
std::optional<IValue> field_of(const IValue& base, const Fields& fields, const Place& place) {
    if (place.kind == "dict") return base;
    const auto* index = place.key.get<int64_t>();
    if (!index) return item_of(base, place.key);
    const int64_t at = *index < 0 ? *index + static_cast<int64_t>(fields.size()) : *index;
    if (at < 0 || static_cast<size_t>(at) >= fields.size()) return {};
    return item_of(base, Value(fields[static_cast<size_t>(at)]));
}

std::optional<IValue> element_of(const IValue& base, const Value& key) {
    const auto* index = key.get<int64_t>();
    if (!index || !base.isTensor() || *index < 0 || *index >= base.toTensor().numel()) return {};
    const at::Scalar item = base.toTensor().detach().flatten().select(0, *index).item();
    return IValue(item);
}

}  // namespace

const IValue& ArgumentReader::operator()(Path path) {
    std::optional<IValue>& seen = seen_[path];
    const bool is_new = !seen;
    if (!seen) seen = read(path);
    if (!seen) throw InputError("the arguments have nothing at " + text(path));
    if (const auto cls = method_.classes.find(path); is_new && cls != method_.classes.end())
        seen = with_fields(*std::move(seen), cls->second);
    return *seen;
}

const IValue& ArgumentReader::passed(Path path) {
    const IValue& x = (*this)(path);
    for (const auto& [before, made] : with_fields_)
        if (made.is(x)) return before;
    return x;
}

IValue ArgumentReader::with_fields(IValue x, const Fields& fields) {
    for (const auto& [before, made] : with_fields_)
        if (before.is(x)) return made;
    std::vector<IValue> items;
    if (x.isTuple()) {
        items = x.toTupleRef().elements().vec();
    } else if (x.isGenericDict() && x.toGenericDict().size() == fields.size()) {
        for (const std::string& name : fields)
            if (auto item = item_of(x, Value(name))) items.push_back(*std::move(item));
    }
    if (items.size() != fields.size()) return x;
    c10::impl::GenericDict made(c10::StringType::get(), c10::AnyType::get());
    for (size_t i = 0; i < fields.size(); ++i) made.insert(fields[i], std::move(items[i]));
    with_fields_.emplace_back(std::move(x), made);
    return made;
}

std::string ArgumentReader::text(Path path) const {
    const Place& place = method_.places[path];
    if (place.base == path) return place.kind + "[" + repr(place.key) + "]";
    return text(place.base) + "[" + repr(place.key) + "]";
}

std::optional<IValue> ArgumentReader::read(Path path) {
    const Place& place = method_.places[path];
    if (place.base != path) {
        const IValue& base = (*this)(place.base);
        const auto cls = method_.classes.find(place.base);
        if (cls != method_.classes.end() && base.isGenericDict()) return field_of(base, cls->second, place);
        if (place.kind == "item") return item_of(base, place.key);
        if (place.kind == "member") return member_of(base, place.key);
        if (place.kind == "element") return element_of(base, place.key);
        return {};
    }
    const auto* index = place.key.get<int64_t>();
    const auto* name = place.key.get<std::string>();
    if (place.kind == "args") {
        if (place.key.is_none()) return c10::ivalue::Tuple::create(std::vector<IValue>(bound_.positional));
        if (!index || *index < 0 || static_cast<size_t>(*index) >= bound_.positional.size()) return {};
        return bound_.positional[static_cast<size_t>(*index)];
    }
    if (!name) return {};
    if (place.kind == "kwargs") {
        const auto found = bound_.keywords.find(*name);
        return found == bound_.keywords.end() ? std::optional<IValue>() : std::optional(found->second);
    }
    const auto found = names_.find(*name);
    return found == names_.end() ? std::optional<IValue>() : std::optional<IValue>(state_[found->second]);
}

Number ArgumentReader::number(const NumberOf& number) {
    try {
        return computed(number.tree, [&](size_t i) {
            const auto found = number_of((*this)(number.paths[i]));
            if (!found) throw NumberError("a number is expected");
            return *found;
        });
    } catch (const NumberError& error) {
        throw InputError(std::string("a number of the arguments cannot be computed: ") + error.what());
    }
}

// ------------------------------------------------------------------------------------------------ checks

namespace {

std::string range_text(const SizeRule& s) {
    if (s.over || s.is_remainder)
        return "laid out so that its remainder by " + std::to_string(s.divisor) + " is from " +
               std::to_string(s.low) + " to " + std::to_string(s.high);
    const __int128 low = static_cast<__int128>(s.low) * s.divisor;
    const __int128 high = static_cast<__int128>(s.high) * s.divisor + s.divisor - 1;
    auto text = [](__int128 n) { return std::to_string(static_cast<int64_t>(n)); };
    return high >= kInfinite ? "at least " + text(low) : "from " + text(low) + " to " + text(high);
}

int64_t value_of(const SizeRule& s, ArgumentReader& read) {
    int64_t number = 0;
    if (const auto* tree = std::get_if<NumberOf>(&s.of)) {
        const Number found = read.number(*tree);
        if (!std::holds_alternative<int64_t>(found)) throw InputError(s.text + " must be an int");
        number = std::get<int64_t>(found);
    } else {
        const at::Tensor& t = tensor(read(std::get<Path>(s.of)));
        number = s.over ? t.stride(s.dim) - t.size(*s.over) * t.stride(*s.over) : t.size(s.dim);
    }
    const int64_t value =
        s.is_remainder ? shapes::modulo(number, s.divisor) : shapes::floor_divide(number, s.divisor);
    if (s.low <= value && value <= s.high) return value;
    const std::string named = s.name.empty() ? "" : ", the Dim " + repr(s.name) + ",";
    const bool is_number = std::holds_alternative<NumberOf>(s.of);
    throw InputError((is_number ? s.text : "dimension " + std::to_string(s.dim) + " of " + s.text) + named +
                     " must be " + range_text(s) + ", got " + std::to_string(number));
}

void check_kind(const TensorRule& rule, const IValue& x) {
    if (!x.isTensor()) throw InputError(rule.text + " must be a Tensor, got " + kind_text(x));
    const at::Tensor& t = x.toTensor();
    auto differs = [&](const char* what, const std::string& expected, const std::string& found) {
        throw InputError(rule.text + " must have " + what + " " + expected + ", got " + found);
    };
    if (!t.defined()) throw InputError(rule.text + " must be a Tensor, got an undefined one");
    if (t.scalar_type() != rule.dtype)
        differs("dtype", "torch." + std::string(values::name_of(rule.dtype)),
                "torch." + std::string(values::name_of(t.scalar_type())));
    if (t.device() != rule.device) differs("device", rule.device.str(), t.device().str());
    if (t.layout() != rule.layout)
        differs("layout", "torch." + std::string(values::name_of(rule.layout)),
                "torch." + std::string(values::name_of(t.layout())));
    if (static_cast<size_t>(t.dim()) != rule.shape.size())
        throw InputError(rule.text + " must have " + std::to_string(rule.shape.size()) + " dimensions, got " +
                         std::to_string(t.dim()) + ": " + shape_text(t));
    if (t.is_conj() || t.is_neg())
        throw InputError(rule.text +
                         " has its conjugate or negative bit set: call resolve_conj().resolve_neg()");
}

void check_sizes(const TensorRule& rule, const at::Tensor& t, const std::vector<int64_t>& slots) {
    auto of = [&](size_t d) { return "dimension " + std::to_string(d) + " of " + rule.text + " must "; };
    for (size_t d = 0; d < rule.shape.size(); ++d) {
        const int64_t found = t.sizes()[d];
        if (rule.shape[d] ? slots[*rule.shape[d]] == found : found >= rule.least) continue;
        const std::string wanted = rule.shape[d] ? std::to_string(slots[*rule.shape[d]]) + rule.notes[d]
                                                 : "at least " + std::to_string(rule.least);
        throw InputError(of(d) + "be " + wanted + ", got " + std::to_string(found));
    }
    if (rule.layout != c10::Layout::Strided) return;
    int64_t inner = 1;
    for (size_t d = rule.shape.size(); d-- > 0;) {
        const int64_t wanted = rule.stride[d] ? slots[*rule.stride[d]] : inner;
        inner *= std::max<int64_t>(t.sizes()[d], 1);
        if (wanted == t.strides()[d]) continue;
        throw InputError(of(d) + "have stride " + std::to_string(wanted) + ", got " +
                         std::to_string(t.strides()[d]) +
                         ": pass a tensor laid out as the example's, such as x.contiguous()");
    }
}

// ---- rules of other kinds

using Objects = std::vector<IValue>;

bool is_one_object(const IValue& x, const IValue& y) {
    if (x.isTensor() && y.isTensor()) return x.toTensor().is_same(y.toTensor());
    return x.is(y);
}

size_t length(const IValue& x) {
    if (x.isTuple()) return x.toTupleRef().elements().size();
    if (x.isList()) return x.toListRef().size();
    if (x.isGenericDict()) return x.toGenericDict().size();
    return x.isString() ? x.toStringRef().size() : SIZE_MAX;
}

bool has_number(const Value& type, const Objects& objects) {
    const IValue& x = objects[0];
    return number_of(x) && type_of(*number_of(x)) == values::text(type);
}

bool has_keys(const Value& keys, const Objects& objects) {
    if (!objects[0].isGenericDict()) return false;
    std::vector<IValue> found;
    for (const auto& entry : objects[0].toGenericDict()) found.push_back(entry.key());
    return same(c10::ivalue::Tuple::create(std::move(found)), keys);
}

bool contains(const Value& value, const Objects& objects) {
    const Items& pair = values::tuple(value, 2);
    if (!objects[0].isGenericDict()) return !values::boolean(pair[1]);
    bool found = false;
    for (const auto& entry : objects[0].toGenericDict()) found |= same(entry.key(), pair[0]);
    return found == values::boolean(pair[1]);
}

bool are_distinct(const Value&, const Objects& objects) {
    for (size_t i = 0; i < objects.size(); ++i)
        for (size_t k = i + 1; k < objects.size(); ++k)
            if (is_one_object(objects[i], objects[k])) return false;
    return true;
}

bool share_no_memory(const Value& flags, const Objects& objects) {
    struct Span {
        uintptr_t begin, end;
        bool is_argument, is_written;
    };
    std::vector<Span> spans;
    for (size_t i = 0; i < objects.size(); ++i) {
        const c10::Storage& storage = tensor(objects[i]).storage();
        const auto at = reinterpret_cast<uintptr_t>(storage.data());
        const Items& pair = values::tuple(values::tuple(flags)[i], 2);
        spans.push_back({at, at + storage.nbytes(), values::boolean(pair[0]), values::boolean(pair[1])});
    }
    for (size_t i = 0; i < spans.size(); ++i)
        for (size_t k = 0; spans[i].is_argument && k < spans.size(); ++k)
            if (i != k && (spans[i].is_written || spans[k].is_written) && spans[i].begin < spans[k].end &&
                spans[k].begin < spans[i].end)
                return false;
    return true;
}

bool share_storage(const Value&, const Objects& objects) {
    return std::all_of(objects.begin(), objects.end(), [&](const IValue& x) {
        return tensor(x).storage().data() == tensor(objects[0]).storage().data();
    });
}

bool holds(const Value& value, const Objects& objects) {
    std::vector<Number> numbers;
    for (const IValue& x : objects) {
        const auto number = number_of(x);
        if (!number) return false;
        numbers.push_back(*number);
    }
    const Items& pair = values::tuple(value, 2);
    try {
        const Number found = computed(pair[0], [&](size_t i) { return numbers[i]; });
        if (const auto* type = pair[1].get<std::string>()) return type_of(found) == *type;
        return std::visit([&](auto x) { return same(IValue(x), pair[1]); }, found);
    } catch (const NumberError&) {
        return false;
    }
}

struct RuleKind {
    bool (*holds)(const Value& value, const Objects& objects);
    bool is_shown;  // whether the message shows what was passed
};

const std::unordered_map<std::string, RuleKind>& rule_kinds() {
    static const std::unordered_map<std::string, RuleKind> kinds{
        {"type", {[](const Value& v, const Objects& x) { return is_of_class(x[0], values::text(v)); }, true}},
        {"eq", {[](const Value& v, const Objects& x) { return same(x[0], v); }, true}},
        {"number", {has_number, true}},
        {"len",
         {[](const Value& v, const Objects& x) {
              return values::integer(v) >= 0 && length(x[0]) == static_cast<size_t>(values::integer(v));
          },
          true}},
        {"keys", {has_keys, true}},
        {"contains", {contains, false}},
        {"not_in_dict",
         {[](const Value&, const Objects&) { return true; }, false}},  // values have no attributes
        {"no_attr", {[](const Value&, const Objects&) { return true; }, false}},
        {"alias", {[](const Value&, const Objects& x) { return is_one_object(x[0], x[1]); }, false}},
        {"distinct", {are_distinct, false}},
        {"no_overlap", {share_no_memory, false}},
        {"shared_storage", {share_storage, false}},
        {"expression", {holds, true}},
    };
    return kinds;
}

// Whether the object at a place is the dict of the fields of its class.
bool is_instance(const Method& method, Path path, const IValue& x) {
    const auto cls = method.classes.find(path);
    if (cls == method.classes.end() || !x.isGenericDict()) return false;
    const auto dict = x.toGenericDict();
    return dict.size() == cls->second.size() &&
           std::all_of(cls->second.begin(), cls->second.end(),
                       [&](const auto& name) { return dict.contains(name); });
}

void check_rule(const Method& method, const Rule& rule, ArgumentReader& read) {
    Objects objects;
    for (const Path path : rule.paths) objects.push_back(read(path));
    if (rule.kind == "type" && is_instance(method, rule.paths[0], objects[0])) return;
    const auto kind = rule_kinds().find(rule.kind);
    if (kind == rule_kinds().end()) throw ProgramError("a rule of an unknown kind, " + rule.kind);
    if (kind->second.holds(rule.value, objects)) return;
    std::vector<std::string> shown;
    for (const IValue& x : objects) shown.push_back(short_text(x));
    throw InputError(rule.text + (kind->second.is_shown ? ", got " + with_commas(shown) : "") +
                     ": the exported program depends on it" +
                     (rule.line.empty() ? "" : " (" + rule.line + ")"));
}

}  // namespace

std::string shape_text(const at::Tensor& t) {
    std::string text = "(";
    for (int64_t d = 0; d < t.dim(); ++d) text += (d ? ", " : "") + std::to_string(t.size(d));
    return text + (t.dim() == 1 ? ",)" : ")");
}

std::vector<int64_t> check(const Method& method, ArgumentReader& read) {
    std::vector<std::pair<const TensorRule*, at::Tensor>> tensors;
    std::vector<const Rule*> conditions;
    for (const auto& any : method.rules) {
        if (const auto* of_tensor = std::get_if<TensorRule>(&any)) {
            const IValue& x = read(of_tensor->path);
            check_kind(*of_tensor, x);
            tensors.emplace_back(of_tensor, x.toTensor());
            continue;
        }
        const Rule& rule = std::get<Rule>(any);
        if (rule.kind == "expression")
            conditions.push_back(&rule);
        else
            check_rule(method, rule, read);
    }
    std::vector<int64_t> slots;
    for (const SizeRule& size : method.sizes) slots.push_back(value_of(size, read));
    slots.resize(slots.size() + method.program.size());
    if (shapes::run(method.program, method.sizes.size(), slots.data()) != shapes::Status::ok)
        throw InputError("sizes of more than 64 bits");
    for (const auto& [rule, t] : tensors) check_sizes(*rule, t, slots);
    for (const Rule* rule : conditions) check_rule(method, *rule, read);
    return slots;
}

}  // namespace smelt::exported
