#include "plan/boxed_arguments.h"

#include <ATen/ScalarOps.h>

namespace smelt::plan {
namespace {

using c10::TypeKind;
using values::FormatError;
using values::Node;
using values::Value;

// Numbers, texts and torch's enumerations, by what they are.
c10::IValue scalar(const Value& value) {
    if (value.is_none()) return {};
    if (const auto* x = value.get<bool>()) return *x;
    if (const auto* x = value.get<int64_t>()) return *x;
    if (const auto* x = value.get<double>()) return *x;
    if (const auto* x = value.get<c10::complex<double>>()) return *x;
    if (const auto* x = value.get<std::string>()) return *x;
    if (const auto* x = value.get<c10::Device>()) return *x;
    if (const auto* x = value.get<c10::ScalarType>()) return static_cast<int64_t>(*x);
    if (const auto* x = value.get<c10::Layout>()) return static_cast<int64_t>(*x);
    if (const auto* x = value.get<c10::MemoryFormat>()) return static_cast<int64_t>(*x);
    if (const auto* x = value.get<c10::IValue>()) return *x;
    throw FormatError("Plan: an argument that no operator takes");
}

[[noreturn]] void refuse(const c10::Type& type) {
    throw FormatError("Plan: an argument that is no " + type.str());
}

c10::IValue boxed_as(const Value& value, const c10::TypePtr& type, std::optional<int32_t> count);

c10::IValue tensor(const Value& value, const c10::Type& type) {
    if (value.is_none())
        return at::Tensor();  // of operators whose schema does not say that they take none, as in Python
    const c10::IValue found = scalar(value);
    if (found.isTensor()) return found;
    if (!found.isScalar()) refuse(type);
    at::Tensor t = at::scalar_to_tensor(found.toScalar());
    t.unsafeGetTensorImpl()->set_wrapped_number(true);
    return t;
}

c10::IValue real(const Value& value, const c10::Type& type) {
    const c10::IValue found = scalar(value);
    if (found.isDouble()) return found;
    if (found.isInt()) return static_cast<double>(found.toInt());
    if (found.isBool()) return found.toBool() ? 1.0 : 0.0;
    refuse(type);
}

c10::IValue integer(const Value& value, const c10::Type& type) {
    const c10::IValue found = scalar(value);
    if (found.isInt()) return found;
    if (found.isBool()) return static_cast<int64_t>(found.toBool());
    refuse(type);
}

const values::Items* members(const Value& value) {
    const Node* node = value.get<Node>();
    const bool is_sequence = node && (node->kind == values::Kind::tuple || node->kind == values::Kind::list);
    return is_sequence ? &node->items : nullptr;
}

c10::IValue list(const Value& value, const c10::TypePtr& type, std::optional<int32_t> count) {
    const c10::TypePtr& element = type->expectRef<c10::ListType>().getElementType();
    c10::TypePtr stored = element;  // sizes are stored as integers
    if (element->kind() == TypeKind::SymIntType) stored = c10::IntType::get();
    c10::impl::GenericList made(stored);
    if (const values::Items* found = members(value)) {
        made.reserve(found->size());
        for (const Value& item : *found) made.push_back(boxed_as(item, element, {}));
        return made;
    }
    if (const auto* whole = value.get<c10::IValue>(); whole && whole->isList()) return *whole;
    if (!count) refuse(*type);
    const c10::IValue one = boxed_as(value, element, {});  // int[2] takes a number
    for (int32_t i = 0; i < *count; ++i) made.push_back(one);
    return made;
}

c10::IValue of_any_type(const Value& value) {
    const values::Items* found = members(value);
    if (!found) return scalar(value);
    std::vector<c10::IValue> made;
    for (const Value& item : *found) made.push_back(of_any_type(item));
    return c10::ivalue::Tuple::create(std::move(made));
}

c10::IValue boxed_as(const Value& value, const c10::TypePtr& type, std::optional<int32_t> count) {
    switch (type->kind()) {
        case TypeKind::OptionalType:
            if (value.is_none()) return {};
            return boxed_as(value, type->expectRef<c10::OptionalType>().getElementType(), count);
        case TypeKind::TensorType:
            return tensor(value, *type);
        case TypeKind::FloatType:
        case TypeKind::SymFloatType:
            return real(value, *type);
        case TypeKind::IntType:
        case TypeKind::SymIntType:
        case TypeKind::ScalarTypeType:
        case TypeKind::LayoutType:
        case TypeKind::MemoryFormatType:
            return integer(value, *type);
        case TypeKind::BoolType:
        case TypeKind::SymBoolType: {
            c10::IValue found = scalar(value);
            if (!found.isBool()) refuse(*type);
            return found;
        }
        case TypeKind::NumberType: {
            c10::IValue found = scalar(value);
            if (!found.isScalar()) refuse(*type);
            return found;
        }
        case TypeKind::ComplexType: {
            const c10::IValue found = scalar(value);
            if (!found.isScalar()) refuse(*type);
            return found.toScalar().toComplexDouble();
        }
        case TypeKind::StringType:
        case TypeKind::DeviceObjType: {
            c10::IValue found = scalar(value);
            if (found.isString() && type->kind() == TypeKind::DeviceObjType)
                return c10::Device(found.toStringRef());
            if (found.isString() != (type->kind() == TypeKind::StringType) ||
                (!found.isString() && !found.isDevice()))
                refuse(*type);
            return found;
        }
        case TypeKind::ListType:
            return list(value, type, count);
        default:
            return of_any_type(value);
    }
}

}  // namespace

c10::IValue boxed(const values::Value& value, const c10::Argument& argument) {
    try {
        return boxed_as(value, argument.type(), argument.N());
    } catch (const FormatError& error) {
        throw FormatError(std::string(error.what()) + " (" + argument.name() + ")");
    }
}

}  // namespace smelt::plan
