#include "values/decode.h"

#include <cstring>
#include <unordered_map>

namespace smelt::values {
namespace {

constexpr int kDepth = 100;  // of values inside values
constexpr size_t kIntegerBytes = 32;

template <class T>
using Names = std::unordered_map<std::string_view, T>;

const Names<c10::ScalarType>& dtypes() {
    static const Names<c10::ScalarType> names = [] {
        using enum c10::ScalarType;
        return Names<c10::ScalarType>{{"uint8", Byte},
                                      {"int8", Char},
                                      {"int16", Short},
                                      {"int32", Int},
                                      {"int64", Long},
                                      {"float16", Half},
                                      {"float32", Float},
                                      {"float64", Double},
                                      {"complex32", ComplexHalf},
                                      {"complex64", ComplexFloat},
                                      {"complex128", ComplexDouble},
                                      {"bool", Bool},
                                      {"qint8", QInt8},
                                      {"quint8", QUInt8},
                                      {"qint32", QInt32},
                                      {"bfloat16", BFloat16},
                                      {"quint4x2", QUInt4x2},
                                      {"quint2x4", QUInt2x4},
                                      {"bits1x8", Bits1x8},
                                      {"bits2x4", Bits2x4},
                                      {"bits4x2", Bits4x2},
                                      {"bits8", Bits8},
                                      {"bits16", Bits16},
                                      {"float8_e5m2", Float8_e5m2},
                                      {"float8_e4m3fn", Float8_e4m3fn},
                                      {"float8_e5m2fnuz", Float8_e5m2fnuz},
                                      {"float8_e4m3fnuz", Float8_e4m3fnuz},
                                      {"float8_e8m0fnu", Float8_e8m0fnu},
                                      {"float4_e2m1fn_x2", Float4_e2m1fn_x2},
                                      {"uint16", UInt16},
                                      {"uint32", UInt32},
                                      {"uint64", UInt64},
                                      {"uint1", UInt1},
                                      {"uint2", UInt2},
                                      {"uint3", UInt3},
                                      {"uint4", UInt4},
                                      {"uint5", UInt5},
                                      {"uint6", UInt6},
                                      {"uint7", UInt7},
                                      {"int1", Int1},
                                      {"int2", Int2},
                                      {"int3", Int3},
                                      {"int4", Int4},
                                      {"int5", Int5},
                                      {"int6", Int6},
                                      {"int7", Int7}};
    }();
    return names;
}

const Names<c10::Layout>& layouts() {
    static const Names<c10::Layout> names{
        {"strided", c10::Layout::Strided},      {"sparse_coo", c10::Layout::Sparse},
        {"sparse_csr", c10::Layout::SparseCsr}, {"sparse_csc", c10::Layout::SparseCsc},
        {"sparse_bsr", c10::Layout::SparseBsr}, {"sparse_bsc", c10::Layout::SparseBsc},
        {"_mkldnn", c10::Layout::Mkldnn},       {"jagged", c10::Layout::Jagged}};
    return names;
}

const Names<c10::MemoryFormat>& memory_formats() {
    static const Names<c10::MemoryFormat> names{{"contiguous_format", c10::MemoryFormat::Contiguous},
                                                {"preserve_format", c10::MemoryFormat::Preserve},
                                                {"channels_last", c10::MemoryFormat::ChannelsLast},
                                                {"channels_last_3d", c10::MemoryFormat::ChannelsLast3d}};
    return names;
}

template <class T>
std::string_view name_in(const Names<T>& names, T value) {
    for (const auto& [name, found] : names)
        if (found == value) return name;
    return "an unknown value";
}

class Decoder {
  public:
    Decoder(std::string_view data, const FieldsOf& fields_of) : data_(data), fields_of_(fields_of) {}

    Value value() {
        if (++depth_ > kDepth) throw FormatError("values are nested more than 100 deep");
        Value made = tagged(take(1)[0]);
        --depth_;
        return made;
    }

    bool at_end() const { return data_.empty(); }

  private:
    Value tagged(char tag) {
        switch (tag) {
            case 'N':
                return {};
            case 'T':
                return true;
            case 'F':
                return false;
            case 'i':
                return integer();
            case 'd':
                return real();
            case 'c': {
                const double part = real();
                return c10::complex<double>(part, real());
            }
            case 's':
                return std::string(raw());
            case 'b':
                return Bytes{std::string(raw())};
            case 't':
                return named(dtypes());
            case 'l':
                return named(layouts());
            case 'm':
                return named(memory_formats());
            case 'D':
                return device();
            case '(':
            case '[':
                return Node{static_cast<Kind>(tag), 0, several(count())};
            case '{': {
                const size_t n = count();
                if (n % 2) throw FormatError("a key without a value");
                return Node{Kind::dict, 0, several(n)};
            }
            case 'y':
                return symbol();
            case '/':
            case '%':
                return quotient(static_cast<Kind>(tag));
            case 'z':
                return sum();
            case 'o': {
                std::string name(raw());
                return Node{Kind::operation, 0, {Value(std::move(name)), Value(std::string(raw()))}};
            }
            case 'R': {
                const uint64_t kind = count();
                return Node{Kind::record, kind, several(fields_of_(kind))};
            }
            default:
                throw FormatError("an unknown tag");
        }
    }

    std::string_view take(size_t n) {
        if (n > data_.size()) throw FormatError("the data end in the middle of a value");
        const std::string_view taken = data_.substr(0, n);
        data_.remove_prefix(n);
        return taken;
    }

    uint64_t count() {
        uint64_t n = 0;
        for (int shift = 0; shift < 63; shift += 7) {
            const auto byte = static_cast<uint8_t>(take(1)[0]);
            n |= static_cast<uint64_t>(byte & 0x7F) << shift;
            if (byte < 0x80) return n;
        }
        throw FormatError("a count of more than 63 bits");
    }

    std::string_view raw() { return take(count()); }

    Items several(size_t n) {
        if (n > data_.size()) throw FormatError("the data end in the middle of a value");  // each has a tag
        Items made;
        made.reserve(n);
        for (size_t i = 0; i < n; ++i) made.push_back(value());
        return made;
    }

    Value integer() {
        const std::string_view data = raw();
        if (data.size() > kIntegerBytes) throw FormatError("an integer of too many bytes");
        if (data.size() > sizeof(int64_t)) return LargeInteger{std::string(data)};
        uint64_t n = !data.empty() && static_cast<int8_t>(data.back()) < 0 ? ~uint64_t{0} : 0;
        std::memcpy(&n, data.data(), data.size());
        return static_cast<int64_t>(n);
    }

    double real() {
        double number;
        std::memcpy(&number, take(sizeof number).data(), sizeof number);
        return number;
    }

    template <class T>
    T named(const Names<T>& names) {
        const auto found = names.find(raw());
        if (found == names.end()) throw FormatError("an unknown name of torch");
        return found->second;
    }

    c10::Device device() {
        const std::string_view type = raw();
        const Value index = value();
        if (!index.is_none() && (values::integer(index) < 0 || values::integer(index) > INT8_MAX))
            throw FormatError("a device of an unknown index");
        try {
            const c10::Device made{std::string(type)};
            if (made.has_index()) throw FormatError("a device with two indices");
            return index.is_none() ? made
                                   : c10::Device(made.type(), static_cast<int8_t>(values::integer(index)));
        } catch (const c10::Error&) {
            throw FormatError("an unknown device");
        }
    }

    Node symbol() {
        Node made{Kind::symbol};
        made.items.emplace_back(std::string(raw()));
        for (int i = 0; i < 2; ++i) made.items.push_back(value());
        if (values::integer(made.items[1]) > values::integer(made.items[2]))
            throw FormatError("a symbol without values");
        return made;
    }

    Node quotient(Kind kind) {
        Node made{kind};
        for (int i = 0; i < 2; ++i) made.items.push_back(value());
        const int64_t* divisor = made.items[1].get<int64_t>();
        if (divisor && *divisor <= 0) throw FormatError("a size is divided by a number below 1");
        return made;
    }

    Node sum() {
        Node made{Kind::sum};
        made.items.push_back(value());
        for (uint64_t terms = count(); terms > 0; --terms) {
            Node term{Kind::tuple};
            term.items.push_back(value());
            Items factors = several(count());
            for (Value& factor : factors) term.items.push_back(std::move(factor));
            made.items.emplace_back(std::move(term));
        }
        return made;
    }

    std::string_view data_;
    const FieldsOf& fields_of_;
    int depth_ = 0;
};

}  // namespace

Value decode(std::string_view data, const FieldsOf& fields_of) {
    Decoder decoder(data, fields_of);
    Value made = decoder.value();
    if (!decoder.at_end()) throw FormatError("there are bytes behind the value");
    return made;
}

std::string_view name_of(c10::ScalarType dtype) {
    return name_in(dtypes(), dtype);
}

std::string_view name_of(c10::Layout layout) {
    return name_in(layouts(), layout);
}

}  // namespace smelt::values
